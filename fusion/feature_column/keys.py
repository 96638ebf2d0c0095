"""Categorical columns whose ids have no bound: keys of embedding variables."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fusion.runtime.tensorflow.private import feature_column as stock_v1
from fusion.runtime.tensorflow.private import feature_column_v2 as stock
from fusion.runtime.tensorflow.private import serialization
from fusion.tables import EmbeddingVariableOption
from fusion.tables.arguments import fingerprints, is_key_dtype
from fusion.tables.partitions import checked_count

_DTYPES = (tf.int64, tf.int32, tf.string)


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
        is_key = is_string or is_key_dtype(sparse.dtype)
        if is_string != (self.dtype == tf.string) or not is_key:
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
            f"the ids of {self.key!r} have no bound: use fusion.feature_column.embedding_column, "
            "or the functions there for columns that share a table"
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
    """A categorical column whose ids have no bound, for embedding columns of this package.

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
    tf_dtype = tf.as_dtype(dtype)
    if tf_dtype not in _DTYPES:
        names = ", ".join(t.name for t in _DTYPES)
        raise ValueError(f"dtype must be one of {names}, got {tf_dtype.name}")
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    return KeyColumn(key, tf_dtype, option, partition_num)


def key_column(categorical_column: Any) -> KeyColumn | None:
    """The `KeyColumn` that a categorical column is, or has weights for; None if there is none."""
    while isinstance(categorical_column, stock.WeightedCategoricalColumn):
        categorical_column = categorical_column.categorical_column
    return categorical_column if isinstance(categorical_column, KeyColumn) else None


def shared_keys(categorical_columns: Sequence[Any]) -> KeyColumn | None:
    """The first `KeyColumn` of columns that share a table; None if there is none.

    Raises:
      ValueError: others are none, or their table would be another.
    """
    keys = [key_column(column) for column in categorical_columns]
    first = next((key for key in keys if key is not None), None)
    if first is None:
        return None
    for column, own in zip(categorical_columns, keys, strict=True):
        if own is None:
            raise ValueError(
                "either all or none of the columns that share a table must be of "
                f"categorical_column_with_embedding: {first.name!r} is, and {column.name!r} is not"
            )
        check_same_table(first, own)
    return first


def check_same_table(one: KeyColumn, other: KeyColumn) -> None:
    """Checks that two columns can share a table.

    Raises:
      ValueError: they say different things of it.
    """
    for field in ("dtype", "partition_num", "ev_option"):
        values = getattr(one, field), getattr(other, field)
        if values[0] != values[1]:
            raise ValueError(
                f"columns {one.name!r} and {other.name!r} share a table, so they must have the "
                f"same {field}, got {values[0]!r} and {values[1]!r}"
            )
