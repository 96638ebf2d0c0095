"""`get_embedding_variable`, by the name and the arguments that DeepRec has for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusion.tables.embedding_variable import EmbeddingVariable
from fusion.tables.initial_rows import ZerosOnDemand, most_rows
from fusion.tables.options import EmbeddingVariableOption
from fusion.tables.partitioned import KeyedTable, PartitionedEmbeddingVariable
from fusion.tables.partitions import (
    partition_capacity,
    partition_names,
    partitions_by,
    whole_name,
)
from fusion.tables.replicas import whole_variables


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    initializer: Callable[..., Any] | None = None,
    trainable: bool = True,
    partitioner: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> KeyedTable:
    """An `EmbeddingVariable`, or a partitioned one, as `tf.compat.v1.get_variable` gets a variable.

    In a graph the name is that of the variable scope, and a scope that reuses variables gives the
    one that there is.

    Args:
      name: of the table.
      embedding_dim: size D of an embedding, > 0.
      key_dtype: int64, int32 or string.
      value_dtype: float32 or float64.
      initializer: of rows; truncated normal with deviation 1/sqrt(D) if None.
      trainable: whether the table is trained.
      partitioner: how many partitions there are, as of `get_variable`, such as
        `tf.compat.v1.fixed_size_partitioner(2)`; None for that of the variable scope, if it has
        one. Keys are split by `id % 1000 % P`, whatever it is.
      ev_option: when keys get rows and lose them, how many there may be, and what they begin with.

    Raises:
      ValueError, TypeError: naming the argument and what was given.
    """
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    dtype = tf.as_dtype(value_dtype)
    if not tf.executing_eagerly():
        size = option.capacity, embedding_dim
        found = get_tables(name, *size, dtype, partitioner, trainable=trainable)
        return table_of(*found, embedding_dim, option, initializer, key_dtype, trainable)
    capacity = option.capacity or most_rows(dtype.size * embedding_dim)
    count = partitions_by(partitioner, [capacity, embedding_dim], dtype)
    arguments = option.arguments(initializer) | {"trainable": trainable}
    if count is None:
        return EmbeddingVariable(name, embedding_dim, dtype, key_dtype, **arguments)
    return PartitionedEmbeddingVariable(name, embedding_dim, count, dtype, key_dtype, **arguments)


def get_tables(
    name: str,
    capacity: int | None,
    dimension: int,
    dtype: tf.DType,
    partitioner: Any,
    **arguments: Any,
) -> tuple[list[Any], int | None]:
    """The tables of an embedding variable, as `get_variable` gets them, and how many partitions.

    Args:
      name: of the table.
      capacity: of the whole; None for as many rows as memory may hold.
      dimension: D.
      dtype: of the table.
      partitioner: see `get_embedding_variable`.
      **arguments: of `get_variable`.

    Returns:
      The table and None, or those of the partitions and their number.
    """
    most = most_rows(dtype.size * dimension)
    scope = tf.compat.v1.get_variable_scope()
    partitioner = scope.partitioner if partitioner is None else partitioner
    count = partitions_by(partitioner, [capacity or most, dimension], dtype)
    rows = (capacity if count is None else partition_capacity(capacity, count)) or most
    in_scope = tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False)
    with whole_variables(), in_scope as inner:
        inner.set_partitioner(None)  # which would cut tables by rows
        tables = [
            tf.compat.v1.get_variable(
                part, [rows, dimension], dtype, ZerosOnDemand(), use_resource=True, **arguments
            )
            for part in partition_names(name, count)
        ]
    return tables, count


def table_of(
    tables: Sequence[Any],
    count: int | None,
    dimension: int,
    option: EmbeddingVariableOption,
    initializer: Callable[..., Any] | None,
    key_dtype: Any,
    trainable: bool = True,
) -> KeyedTable:
    """The embedding variable of tables of zeros on demand, made now if there is none.

    Args:
      tables: one, or those of partitions, which are named `part_0` and so on.
      count: how many partitions there are, None for a table without.
      dimension: D.
      option, initializer, key_dtype, trainable: as of `get_embedding_variable`.
    """
    known = EmbeddingVariable.of(tables[0])
    if known is not None:
        return known if known.partition is None else known.partition.whole
    name, dtype = tables[0].name.partition(":")[0], tables[0].dtype
    arguments = option.arguments(initializer) | {"key_dtype": key_dtype, "trainable": trainable}
    if count is None:
        return EmbeddingVariable(name, dimension, dtype, table=tables[0], **arguments)
    return PartitionedEmbeddingVariable(
        whole_name(name), dimension, count, dtype, tables=tables, **arguments
    )
