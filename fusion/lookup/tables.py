"""Tables of embeddings as a list of shards to gather from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.runtime.tensorflow.private import MirroredVariable, PartitionedVariable, ShardedVariable
from fusion.schema.attributes import FLOATS
from fusion.tables.partitioned import KeyedTable


def as_shards(params: Any, name: str, weights_dtype: tf.DType | None) -> list[Any]:
    """The shards of a table, each a Variable or Tensor of rank 2 and one dtype.

    Or an embedding variable, partitioned or not, which has no others beside it.

    What is neither yet becomes a Tensor of the weights' dtype, as in stock TensorFlow.
    """
    if params is None:
        raise ValueError(f"{name} must be given, got None")
    if isinstance(params, PartitionedVariable):
        params = list(params)
    if isinstance(params, ShardedVariable):
        params = list(params.variables)
    if not isinstance(params, list | tuple):
        params = [params]
    shards = [_as_table(shard, name, weights_dtype) for shard in params]
    if not shards:
        raise ValueError(f"{name} must not be empty")
    first = shards[0]
    if len(shards) > 1 and any(isinstance(shard, KeyedTable) for shard in shards):
        raise NotImplementedError(f"{name} must be one EmbeddingVariable, not {len(shards)} shards")
    for shard in shards:
        if shard.dtype.base_dtype != first.dtype.base_dtype:
            raise ValueError(
                f"{name} must have one dtype, got {first.dtype.name} and {shard.dtype.name}"
            )
        if shard.shape.rank not in (None, 2):
            raise ValueError(f"{name} must have rank 2, got shape {shard.shape}")
        if not shard.shape[1:].is_compatible_with(first.shape[1:]):
            raise ValueError(f"{name} must have equal rows, got {first.shape} and {shard.shape}")
    if first.dtype.base_dtype.name not in FLOATS:
        raise TypeError(f"{name} must be {' or '.join(FLOATS)}, got {first.dtype.name}")
    return shards


def _as_table(table: Any, name: str, dtype: tf.DType | None) -> Any:
    """`table` as something to gather from: variables stay variables."""
    if isinstance(table, MirroredVariable):
        # TensorFlow gathers from its variables, but reads the whole of this one.
        own = table._get()
        return own if isinstance(own, tf.Variable) else table
    if isinstance(table, tf.Variable | KeyedTable):
        return table
    inner = getattr(table, "value", None)
    if isinstance(inner, tf.Variable):
        return _as_table(inner, name, dtype)  # a Keras 3 variable holds a tf.Variable
    if isinstance(table, ShardedVariable):  # one of a list, which stock TensorFlow reads whole
        return tf.concat(list(table.variables), 0)
    try:
        return tf.convert_to_tensor(table, None if tf.is_tensor(table) else dtype, name=name)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} must be a Variable, a Tensor or a list of them, got {type(table).__name__}"
        ) from error


def gather_rows(
    table: Any,
    ids: tf.Tensor,
    counts: Callable[[], tf.Tensor],
    max_norm: float | None,
    name: str | None = None,
) -> tf.Tensor:
    """The rows of distinct ids, as `tf.nn.embedding_lookup` has them.

    Args:
      table: of `as_shards`.
      ids: int32 or int64 [u].
      counts: gives how often each was there, int32 [u].
      max_norm: limit of the norm of each row, or None.
      name: of the operation.
    """
    if not isinstance(table, KeyedTable):
        return tf.nn.embedding_lookup(table, ids, max_norm=max_norm, name=name)
    seen = counts() if table.admission > 1 else None
    return clipped(table.embedding_lookup(ids, seen, name=name), max_norm)


def clipped(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Rows of at most this norm each."""
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[1])


def has_handle(table: Any) -> bool:
    """Whether a table is a Variable, which one of all replicas is not outside of them."""
    try:
        return hasattr(table, "handle")
    except ValueError:
        return False


def shard_shape(shard: Any) -> tf.Tensor:
    """The shape of a table, int64 [2], without reading a variable; any key may have a row."""
    if isinstance(shard, KeyedTable):
        return tf.constant([tf.int64.max, shard.dimension], tf.int64)
    if shard.shape.is_fully_defined():
        return tf.constant(shard.shape.as_list(), tf.int64)
    if hasattr(shard, "handle"):
        return tf.raw_ops.VariableShape(input=shard.handle, out_type=tf.int64)
    return tf.shape(shard, out_type=tf.int64)
