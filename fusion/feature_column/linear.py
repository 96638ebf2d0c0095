"""The sum of weighted columns, for layers of either Keras: `linear_model` with fused lookups."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from fusion.feature_column.column_state import scope_name, without_checkpoint
from fusion.feature_column.inputs import as_stock, as_tensors, feature_names
from fusion.feature_column.keyed import RESOURCE, TableOfKeys
from fusion.feature_column.keys import key_column
from fusion.feature_column.single_ids import matrix_of_ids
from fusion.lookup import VERSIONS, Lookup, LookupOptions, joined_lookups, lookup, stock_lookup
from fusion.runtime.tensorflow.private import feature_column_v2 as stock

#: The names of variables, which are `linear_model`'s.
WEIGHTS, BIAS = "weights", "bias_weights"


class LinearColumns:
    """The columns of a linear model, sorted by name, and what it computes of them.

    Attributes:
      all: the columns.
      names: of the features that they are made from.
      units: elements of a result's row.
      sparse_combiner: how the weights of a row's ids are added.
      do_fusion: the family of ops that looks weights up; None for stock's.
    """

    def __init__(
        self, feature_columns: Any, units: int, sparse_combiner: str, do_fusion: str | None
    ) -> None:
        try:
            self.units = operator.index(units)
        except TypeError:
            raise TypeError(f"units must be an integer, got {units!r}") from None
        if self.units < 1:
            raise ValueError(f"units must be at least 1, got {units}")
        if do_fusion is not None and do_fusion not in VERSIONS:
            raise ValueError(f"do_fusion must be None or one of {VERSIONS}, got {do_fusion!r}")
        self._options = LookupOptions.checked(
            sparse_combiner, None, None, None, True, True, do_fusion or LookupOptions.version
        )
        self.sparse_combiner = self._options.combiner
        self.do_fusion = do_fusion
        self.all = tuple(stock._normalize_feature_columns(feature_columns))
        for column in self.all:
            if not isinstance(column, stock.DenseColumn | stock.CategoricalColumn):
                raise ValueError(
                    f"feature_columns must be dense or categorical columns, got {column}"
                )
        self.names = feature_names(self.all)

    def options(self) -> dict[str, Any]:
        """The arguments of a layer, but for the columns."""
        return {
            "units": self.units,
            "sparse_combiner": self.sparse_combiner,
            "do_fusion": self.do_fusion,
        }

    def create_weights(self, column: Any, state: stock.StateManager) -> None:
        """Creates the weights of a column, zeros [ids or elements, units]."""
        keys = key_column(column)
        if keys is not None:
            TableOfKeys(keys, self.units, tf.zeros_initializer(), True).create(column, state)
            return
        is_categorical = isinstance(column, stock.CategoricalColumn)
        rows = column.num_buckets if is_categorical else column.variable_shape.num_elements()
        state.create_variable(
            without_checkpoint(column),  # that one is of the column's own table
            name=WEIGHTS,
            shape=(rows, self.units),
            dtype=tf.float32,
            initializer=tf.zeros_initializer(),
        )

    @tf.autograph.experimental.do_not_convert  # nothing here depends on the values of tensors
    def weighted_sum(self, features: Mapping[str, Any], state: Any, bias: tf.Tensor) -> tf.Tensor:
        """The result, float32 [B, units].

        Args:
          features: see `as_tensors`.
          state: what has the variables; its `dense_tensor` evaluates dense columns.
          bias: [units].
        """
        tensors = as_tensors(features, self.names)
        cache = stock.FeatureTransformationCache({n: as_stock(t) for n, t in tensors.items()})
        terms: list[Lookup | tf.Tensor] = []
        for column in self.all:
            with tf.name_scope(scope_name(column.name)):
                if isinstance(column, stock.CategoricalColumn):
                    terms.append(self._lookup(column, tensors, cache, state))
                else:
                    terms.append(self._product(column, cache, state))
        rows = [term.ids if isinstance(term, Lookup) else term for term in terms]
        stock._verify_static_batch_size_equality(rows, self.all)
        if any(isinstance(term, Lookup) for term in terms):
            (matrix,) = joined_lookups(terms, [len(terms)])
        else:
            matrix = tf.concat(terms, 1)
        # Stock's AddN would add them in an order that depends on the buffers that it may write to.
        total = tf.reduce_sum(tf.reshape(matrix, [-1, len(terms), self.units]), 1)
        return tf.nn.bias_add(total, bias)

    def _product(self, column: Any, cache: Any, state: Any) -> tf.Tensor:
        weights = state.get_variable(without_checkpoint(column), WEIGHTS)
        matrix = tf.reshape(state.dense_tensor(column, cache), [-1, weights.shape[0]])
        return tf.matmul(matrix, weights)

    def _lookup(
        self, column: Any, tensors: Mapping[str, Any], cache: Any, state: Any
    ) -> Lookup | tf.Tensor:
        """A lookup that shares ops with others, or the result of one that cannot."""
        has_keys = key_column(column) is not None
        table = (
            state.get_resource(column, RESOURCE)
            if has_keys
            else state.get_variable(column, WEIGHTS)
        )
        if self.do_fusion is None:
            sparse = column.get_sparse_tensors(cache, state)
            ids, weights = _as_matrix(sparse.id_tensor), _as_matrix(sparse.weight_tensor)
            if has_keys:
                return stock_lookup(table, ids, weights, self.sparse_combiner, None, True)
            return tf.compat.v1.nn.safe_embedding_lookup_sparse(
                table, ids, weights, combiner=self.sparse_combiner
            )
        name = scope_name(column.name)
        matrix = matrix_of_ids(column, tensors, cache, state)
        if matrix is not None:
            result = Lookup(table, matrix, None, self._options, name)
            if result.is_groupable:
                return result
        sparse = column.get_sparse_tensors(cache, state)
        ids, weights = _as_matrix(sparse.id_tensor), _as_matrix(sparse.weight_tensor)
        result = Lookup(table, ids, weights, self._options, name)
        return result if result.is_groupable else lookup(table, ids, weights, self._options)


def _as_matrix(sparse: tf.SparseTensor | None) -> tf.SparseTensor | None:
    """All elements of an example in a row."""
    if sparse is None or sparse.shape.rank == 2:
        return sparse
    return tf.sparse.reshape(sparse, tf.stack([sparse.dense_shape[0], -1]))
