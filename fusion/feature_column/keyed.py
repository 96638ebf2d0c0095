"""Columns whose ids have no bound, over embedding variables."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as stock_v1
from tensorflow.python.feature_column import feature_column_v2 as stock
from tensorflow.python.feature_column import serialization

from fusion.feature_column.fused import FusedColumn
from fusion.lookup import VERSIONS, stock_lookup
from fusion.lookup.ids import rank_of
from fusion.tables import EmbeddingVariableOption
from fusion.tables.deeprec import get_tables, table_of
from fusion.tables.frozen import fingerprints
from fusion.tables.initial_rows import ZerosOnDemand, most_rows
from fusion.tables.partitioned import (
    KeyedTable,
    checked_count,
    partition_capacity,
    partition_names,
)
from fusion.tables.replicas import whole_variables

_DTYPES = (tf.int64, tf.int32, tf.string)

#: What hosts know the table by, and the embedding variable.
_TABLE, RESOURCE = "embedding_weights", "embedding_variable"

_ITEM_BYTES = 4


@serialization.register_feature_column
class KeyColumn(
    stock.CategoricalColumn,
    stock_v1._CategoricalColumn,
    namedtuple("KeyColumn", ("key", "dtype", "ev_option", "partition_num")),
):
    """See `categorical_column_with_embedding`."""

    __slots__ = ()

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """How the feature is read from `tf.train.Example`s."""
        dtype = tf.int64 if self.dtype == tf.int32 else self.dtype
        return {self.key: tf.io.VarLenFeature(dtype)}

    @property
    def _parse_example_spec(self) -> dict[str, Any]:
        return self.parse_example_spec

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> tf.SparseTensor:
        """The keys as ids, int64: those of strings are fingerprints."""
        return self._transformed(transformation_cache.get(self.key, state_manager))

    def _transform_feature(self, inputs: Any) -> tf.SparseTensor:
        return self._transformed(inputs.get(self.key))

    def _transformed(self, feature: Any) -> tf.SparseTensor:
        sparse = stock._to_sparse_input_and_drop_ignore_values(feature)
        is_string = sparse.dtype == tf.string
        if is_string != (self.dtype == tf.string) or not (is_string or sparse.dtype.is_integer):
            raise ValueError(
                f"feature {self.key!r} must be of {self.dtype.name}, got {sparse.dtype.name}"
            )
        values = fingerprints(sparse.values) if is_string else tf.cast(sparse.values, tf.int64)
        return tf.SparseTensor(sparse.indices, values, sparse.dense_shape)

    @property
    def num_buckets(self) -> int:
        """There is no number of them.

        Raises:
          ValueError: always: columns of stock TensorFlow would make a table of so many rows.
        """
        raise ValueError(
            f"the ids of {self.key!r} have no bound: use fusion.feature_column.embedding_column"
        )

    @property
    def _num_buckets(self) -> int:
        return self.num_buckets

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The ids, without weights."""
        ids = transformation_cache.get(self, state_manager)
        return stock.CategoricalColumn.IdWeightPair(ids, None)

    def _get_sparse_tensors(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        del weight_collections, trainable
        return stock.CategoricalColumn.IdWeightPair(inputs.get(self), None)

    @property
    def parents(self) -> list[Any]:
        """What the column is made of."""
        return [self.key]

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        option = self.ev_option.get_config()
        fields = {"key": self.key, "dtype": self.dtype.name, "partition_num": self.partition_num}
        return {**fields, "ev_option": option}

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        custom_objects: Any = None,
        columns_by_name: Any = None,
    ) -> KeyColumn:
        """A column of `get_config`'s result."""
        del custom_objects, columns_by_name
        option = EmbeddingVariableOption.from_config(config["ev_option"])
        dtype = tf.as_dtype(config["dtype"])
        return cls(config["key"], dtype, option, config.get("partition_num"))


def categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> KeyColumn:
    """A categorical column whose ids have no bound, for `embedding_column` of this package.

    Its embedding is an `EmbeddingVariable`: ids get rows when they are trained.

    Args:
      key: the feature's name: a Tensor (in which -1 and "" are missing), SparseTensor or
        RaggedTensor.
      dtype: int64, int32 or string.
      partition_num: how many partitions the table has, see `PartitionedEmbeddingVariable`; None
        for one table, or in `input_layer` for what the partitioner of the variable scope says.
      ev_option: when ids get rows, how many there may be, and what they begin with.

    Raises:
      ValueError, TypeError: another dtype or option, or number of partitions.
    """
    if partition_num is not None:
        partition_num = checked_count("partition_num", partition_num)
    found = tf.as_dtype(dtype)
    if found not in _DTYPES:
        names = ", ".join(t.name for t in _DTYPES)
        raise ValueError(f"dtype must be one of {names}, got {found.name}")
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    return KeyColumn(key, found, option, partition_num)


def key_column(categorical_column: Any) -> KeyColumn | None:
    """The `KeyColumn` that a categorical column is, or has weights for; None if there is none."""
    while isinstance(categorical_column, stock.WeightedCategoricalColumn):
        categorical_column = categorical_column.categorical_column
    return categorical_column if isinstance(categorical_column, KeyColumn) else None


@serialization.register_feature_column
class KeyedEmbeddingColumn(FusedColumn, stock.EmbeddingColumn):
    """An embedding column over a `KeyColumn`: its table is an `EmbeddingVariable`.

    `do_fusion` can be None: then all but the gather is done by stock ops.
    """

    def __new__(cls, *fields: Any, do_fusion: str | None, **named: Any) -> Any:
        """A column of the stock class's fields.

        Raises:
          ValueError: an unknown `do_fusion`.
          NotImplementedError: a checkpoint to load from.
        """
        column = super().__new__(cls, *fields, do_fusion=do_fusion or VERSIONS[0], **named)
        if column.ckpt_to_load_from is not None:
            raise NotImplementedError(
                "ckpt_to_load_from is not supported for columns whose ids have no bound, got "
                f"{column.ckpt_to_load_from!r}"
            )
        return tuple.__new__(cls, (*column[:-1], do_fusion))

    @property
    def _keys(self) -> KeyColumn:
        keys = key_column(self.categorical_column)
        assert keys is not None
        return keys

    def create_state(self, state_manager: Any) -> None:
        """Creates the tables, and what belongs to them."""
        count, option = self._keys.partition_num, self._keys.ev_option
        capacity = option.capacity if count is None else partition_capacity(option.capacity, count)
        tables = []
        for name in partition_names(_TABLE, count):
            with whole_variables():
                state_manager.create_variable(
                    self,
                    name=name,
                    shape=(capacity or most_rows(_ITEM_BYTES * self.dimension), self.dimension),
                    dtype=tf.float32,
                    trainable=self.trainable,
                    use_resource=True,
                    initializer=ZerosOnDemand(),
                )
            table = state_manager.get_variable(self, name=name)
            tables.append(table if isinstance(table, tf.Variable) else table.value)
        variable, layer = self._variable(tables, count), getattr(state_manager, "_layer", None)
        if layer is not None:
            variable.is_trained = lambda: bool(self.trainable and layer.trainable)
        state_manager.add_resource(self, RESOURCE, variable)

    def _variable(self, tables: list[Any], count: int | None) -> KeyedTable:
        """The embedding variable of tables of zeros; strings are fingerprints by now."""
        option = self._keys.ev_option
        return table_of(tables, count, self.dimension, option, self.initializer, tf.int64)

    def _get_dense_tensor_internal(self, sparse_tensors: Any, state_manager: Any) -> tf.Tensor:
        """The lookup, in hosts that have a state for columns."""
        return self._result(state_manager.get_resource(self, RESOURCE), sparse_tensors)

    def _old_get_dense_tensor_internal(
        self, sparse_tensors: Any, weight_collections: Any, trainable: Any
    ) -> tf.Tensor:
        """The lookup, in hosts whose variables are of variable scopes."""
        if weight_collections and tf.compat.v1.GraphKeys.GLOBAL_VARIABLES not in weight_collections:
            weight_collections.append(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        count = self._keys.partition_num
        found = get_tables(
            _TABLE,
            self._keys.ev_option.capacity,
            self.dimension,
            tf.float32,
            None if count is None else tf.compat.v1.fixed_size_partitioner(count),
            trainable=self.trainable and trainable,
            collections=weight_collections,
        )
        return self._result(self._variable(*found), sparse_tensors)

    def _result(self, variable: KeyedTable, sparse_tensors: Any) -> tf.Tensor:
        if self.do_fusion is not None:
            return self._look_up(variable, sparse_tensors)
        ids = sparse_tensors.id_tensor
        return stock_lookup(
            variable,
            ids,
            sparse_tensors.weight_tensor,
            self.combiner,
            self.max_norm,
            # Stock's columns use the plain lookup for matrices and vectors only.
            is_safe=self.use_safe_embedding_lookup or rank_of(ids) not in (1, 2),
            name=f"{self.name}_weights",
        )
