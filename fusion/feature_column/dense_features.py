"""`DenseFeatures` for Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fusion.feature_column.column_state import scope_name, without_checkpoint
from fusion.feature_column.config import from_configs, to_configs
from fusion.feature_column.embedding import FusedEmbeddingColumn
from fusion.feature_column.fused import FusedColumn
from fusion.feature_column.inputs import (
    as_stock,
    as_tensors,
    batch_size,
    check_names,
    check_not_compiled,
    feature_names,
)
from fusion.feature_column.layer_state import LayerState, in_symbolic_scope
from fusion.feature_column.shared import FusedSharedEmbeddingColumn
from fusion.feature_column.single_ids import embed, matrix_of_ids, single_ids
from fusion.lookup import VERSIONS, Lookup, grouped_lookup, trained_lookup
from fusion.runtime.tensorflow.private import feature_column_v2 as stock
from fusion.tables.keras_store import KeyedWeights

_AGGREGATIONS = ("concat", "stack")
_EMBEDDING = (stock.EmbeddingColumn, stock.SharedEmbeddingColumn)
#: The fused column of each stock one.
_FUSED: dict[Any, Any] = {
    stock.EmbeddingColumn: FusedEmbeddingColumn,
    stock.SharedEmbeddingColumn: FusedSharedEmbeddingColumn,
}


class _Columns:
    """The columns of a layer in stock's order; hidden from Keras in an object.

    Keras and TensorFlow would take the tuples that columns are apart to track what is in them.
    """

    def __init__(self, feature_columns: Any, do_fusion: str | None) -> None:
        self.all = tuple(stock._normalize_feature_columns(feature_columns))
        for column in self.all:
            if not isinstance(column, stock.DenseColumn):
                raise ValueError(
                    f"feature_columns must be dense columns, wrap a categorical column with "
                    f"embedding_column or indicator_column; got {column}"
                )
        self.used = tuple(_used(column, do_fusion) for column in self.all)
        self.sizes = tuple(column.variable_shape.num_elements() for column in self.all)
        self.names = feature_names(self.all)


def _used(column: Any, do_fusion: str | None) -> Any:
    """The column that the layer evaluates in place of another."""
    if type(column) in _FUSED:
        column = _FUSED[type(column)].of(column, do_fusion)
    elif isinstance(column, FusedColumn) and column.do_fusion is None:
        column = column._replace(do_fusion=do_fusion)
    return without_checkpoint(column)  # the table has been read when it was created


@keras.saving.register_keras_serializable(package="fusion")
class DenseFeatures(KeyedWeights, keras.layers.Layer):
    """A layer that makes one dense tensor of feature columns, for Keras 3.

    What `tf_keras.layers.DenseFeatures` is for Keras 2: the columns' tensors side by side, sorted
    by the columns' names. Embedding columns whose feature has one value per row are looked up
    without a sparse tensor; the numbers are the same.

    Call it with a dict of tensors by feature name (other entries are ignored): Tensors [B] or
    [B, k], SparseTensors, RaggedTensors, or KerasTensors of them. In a dense categorical feature
    -1 and "" mean "missing". A list feature may be given as `<name>__values` [n] or [n, 1] and
    `<name>__offsets`, the index in values where each row starts: [B, 1], or [B], or [B + 1] with n
    at its end. [B] and [B + 1] are distinguished by the other features' number of rows; without
    any they are [B].

    Args:
      feature_columns: dense columns, of `tf.feature_column` or of this package.
      aggregation: "concat" for a result [B, sum of sizes], "stack" for [B, columns, D] of columns
        that all have the size D.
      do_fusion: "v1" or "v2" to look up stock embedding columns with fused ops too; None leaves
        them as they are.
      **kwargs: of a Keras layer, e.g. `name`, `trainable`.

    Raises:
      ValueError: items that are no dense columns; two of one name; sizes that cannot be stacked;
        an unknown `aggregation` or `do_fusion`; another Keras backend than TensorFlow. When
        called: a missing feature, XLA compilation.
      tf.errors.InvalidArgumentError: when called, an id outside its table, or offsets that are no
        row starts.
    """

    def __init__(
        self,
        feature_columns: Any,
        *,
        aggregation: str = "concat",
        do_fusion: str | None = None,
        **kwargs: Any,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"DenseFeatures needs Keras's backend tensorflow, got {keras.backend.backend()}"
            )
        if aggregation not in _AGGREGATIONS:
            raise ValueError(f"aggregation must be one of {_AGGREGATIONS}, got {aggregation!r}")
        if do_fusion is not None and do_fusion not in VERSIONS:
            raise ValueError(f"do_fusion must be None or one of {VERSIONS}, got {do_fusion!r}")
        super().__init__(autocast=False, **kwargs)
        self.supports_jit = False
        self.aggregation = aggregation
        self.do_fusion = do_fusion
        self._columns = _Columns(feature_columns, do_fusion)
        self._state = LayerState(self)
        self._is_restored = False
        if aggregation == "stack" and len(set(self._columns.sizes)) > 1:
            sizes = {c.name: n for c, n in zip(self._columns.all, self._columns.sizes, strict=True)}
            raise ValueError(f"aggregation 'stack' needs columns of one size, got {sizes}")

    def build(self, input_shape: Any = None) -> None:
        """Creates the tables; their shapes follow from the columns alone."""
        del input_shape
        self._state.create(self._columns.all, restored=self._is_restored)

    def build_from_config(self, config: Any) -> None:
        """Creates the tables of a layer whose weights come from a file, not from checkpoints."""
        self._is_restored = True
        super().build_from_config(config)

    def call(self, features: Mapping[str, Any], training: bool | None = None) -> tf.Tensor:
        """The columns' tensors, float32 [B, sum of sizes] or [B, columns, D].

        With `training` False one op looks up all columns with do_fusion and puts everything in its
        place; with True there is one before the gathers of their ids, one after these and one for
        their gradients. With None each column has ops of its own.
        """
        if in_symbolic_scope():
            # Keras wants to know the shape, and does not pass the dtypes of the features.
            return tf.compat.v1.placeholder(tf.float32, self._output_shape(features))
        check_not_compiled(self.name)
        tensors = as_tensors(features, self._columns.names)
        cache = stock.FeatureTransformationCache({n: as_stock(t) for n, t in tensors.items()})
        # What is known in the graph alone does not count.
        mode = bool(training) if isinstance(training, bool | int | np.bool_) else None
        parts: list[Lookup | tf.Tensor] = []
        for column, size in zip(self._columns.used, self._columns.sizes, strict=True):
            with tf.name_scope(scope_name(column.name)):
                part = None if mode is None else self._lookup(column, tensors, cache)
                # A whole table is read for nothing but inference: training would copy it.
                if part is not None and not mode and not part.reads_table_well:
                    part = None
                if part is None:
                    output = self._evaluate(column, cache)
                    part = tf.reshape(output, [tf.shape(output)[0], size])
                parts.append(part)
        rows = [part.ids if isinstance(part, Lookup) else part for part in parts]
        stock._verify_static_batch_size_equality(rows, self._columns.used)
        if any(isinstance(part, Lookup) for part in parts):
            output = trained_lookup(parts) if mode else grouped_lookup(parts)
            if self.aggregation == "concat":
                return output
            return tf.reshape(output, [-1, len(parts), self._columns.sizes[0]])
        return tf.concat(parts, 1) if self.aggregation == "concat" else tf.stack(parts, 1)

    def _lookup(self, column: Any, tensors: Mapping[str, Any], features: Any) -> Lookup | None:
        """The lookup of a column with do_fusion, if it can share an op with others."""
        if not isinstance(column, FusedColumn) or column.do_fusion is None:
            return None
        categorical, ids, weights = column.categorical_column, None, None
        if column.use_safe_embedding_lookup:
            ids = matrix_of_ids(categorical, tensors, features, self._state)
        if ids is None:
            sparse = categorical.get_sparse_tensors(features, self._state)
            ids, weights = sparse.id_tensor, sparse.weight_tensor
        options = column.lookup_options(ids.shape.rank)
        name = scope_name(column.name)
        lookup = Lookup(self._state.table(column), ids, weights, options, name)
        return lookup if lookup.is_groupable else None

    def _evaluate(self, column: Any, features: Any) -> tf.Tensor:
        """The tensor of one column."""
        if isinstance(column, _EMBEDDING) and column.use_safe_embedding_lookup:
            ids = single_ids(column.categorical_column, features, self._state)
            if ids is not None:
                fused = isinstance(column, FusedColumn)
                return embed(self._state.table(column), ids, column.max_norm, fused)
        return self._state.dense_tensor(column, features)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, ...]:
        """The result's shape, from the shapes of the features."""
        check_names(input_shape, self._columns.names)
        batch = batch_size(input_shape, self._columns.names)
        sizes = self._columns.sizes
        return (
            (batch, sum(sizes)) if self.aggregation == "concat" else (batch, len(sizes), sizes[0])
        )

    def compute_output_spec(self, features: Mapping[str, Any], **_: Any) -> Any:
        """What Keras puts in place of the result when a model is put together."""
        return keras.KerasTensor(self._output_shape(features), "float32")

    def _output_shape(self, features: Mapping[str, Any]) -> tuple[int | None, ...]:
        check_names(features, self._columns.names)
        return self.compute_output_shape({name: x.shape for name, x in features.items()})

    def get_config(self) -> dict[str, Any]:
        """The arguments; columns as TensorFlow serialises them."""
        return {
            **super().get_config(),
            "feature_columns": to_configs(self._columns.all),
            "aggregation": self.aggregation,
            "do_fusion": self.do_fusion,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DenseFeatures:
        """A layer from `get_config`'s result.

        Functions that columns contain (`normalizer_fn`, an initializer) are found among Keras's
        custom objects: registered ones, and those of a `custom_object_scope`.
        """
        config = dict(config)
        return cls(from_configs(config.pop("feature_columns")), **config)
