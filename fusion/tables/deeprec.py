"""`get_embedding_variable`, by the name and the arguments that DeepRec has for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.tables.embedding_variable import EmbeddingVariable
from fusion.tables.initial_rows import ZerosOnDemand, most_rows
from fusion.tables.options import EmbeddingVariableOption
from fusion.tables.replicas import shared_by_replicas


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    initializer: Callable[..., Any] | None = None,
    trainable: bool = True,
    partitioner: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> EmbeddingVariable:
    """An `EmbeddingVariable`, as `tf.compat.v1.get_variable` gets a variable.

    In a graph the name is that of the variable scope, and a scope that reuses variables gives the
    one that there is.

    Args:
      name: of the table.
      embedding_dim: size D of an embedding, > 0.
      key_dtype: int64, int32 or string.
      value_dtype: float32 or float64.
      initializer: of rows; truncated normal with deviation 1/sqrt(D) if None.
      trainable: whether the table is trained.
      partitioner: not supported.
      ev_option: when keys get rows and lose them, how many there may be, and what they begin with.

    Raises:
      ValueError, TypeError: naming the argument and what was given.
      NotImplementedError: `partitioner` is given.
    """
    if partitioner is not None:
        raise NotImplementedError(f"partitioner is not supported, got {partitioner!r}")
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    arguments = option.arguments(initializer)
    if tf.executing_eagerly():
        return EmbeddingVariable(
            name, embedding_dim, value_dtype, key_dtype, trainable=trainable, **arguments
        )
    dtype = tf.as_dtype(value_dtype)
    capacity = option.capacity or most_rows(dtype.size * embedding_dim)
    with shared_by_replicas():
        table = tf.compat.v1.get_variable(
            name,
            [capacity, embedding_dim],
            dtype,
            ZerosOnDemand(),
            trainable=trainable,
            use_resource=True,
        )
    known = EmbeddingVariable.of(table)
    if known is not None:
        return known
    full_name = table.name.partition(":")[0]
    return EmbeddingVariable(
        full_name, embedding_dim, dtype, key_dtype, trainable=trainable, table=table, **arguments
    )
