"""Tables of embeddings of every kind that a lookup takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

Array = Any


def split(table: Array, n_shards: int, strategy: str = "div") -> list[Array]:
    """The shards of a table as stock TensorFlow splits it."""
    if strategy == "mod":
        return [table[k::n_shards] for k in range(n_shards)]
    return list(np.array_split(table, n_shards))


def joined(shards: list[Array], strategy: str = "div") -> Array:
    """The inverse of `split`."""
    if strategy == "div":
        return np.concatenate(shards)
    rows = sum(map(len, shards))
    return np.stack([shards[k % len(shards)][k // len(shards)] for k in range(rows)])


def partitioned(table: Array, n_shards: int) -> Any:
    """A v1 PartitionedVariable, in a v1 graph."""
    shards = split(table, n_shards)
    offsets = np.cumsum([0, *map(len, shards)])

    def initializer(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        start = partition_info.var_offset[0] if partition_info else 0
        assert start in offsets
        return tf.constant(table[start : start + shape[0]])

    return tf.compat.v1.get_variable(
        "table",
        table.shape,
        table.dtype,
        initializer,
        partitioner=tf.compat.v1.fixed_size_partitioner(n_shards),
        use_resource=True,
    )


def ref(table: Array) -> Any:
    """A v1 reference variable, in a v1 graph."""
    return tf.compat.v1.get_variable("table", initializer=table, use_resource=False)


#: Makers of a table of each kind, from its rows and the strategy by which shards are split.
EVERYWHERE: dict[str, Callable[[Array, str], Any]] = {
    "variable": lambda table, _: tf.Variable(table),
    "tensor": lambda table, _: tf.constant(table),
    "list of one": lambda table, _: [tf.Variable(table)],
    "shards": lambda table, strategy: [tf.Variable(t) for t in split(table, 3, strategy)],
    "tensors": lambda table, strategy: [tf.constant(t) for t in split(table, 4, strategy)],
    "mixed": lambda table, strategy: [
        make(t)
        for make, t in zip((tf.Variable, tf.constant), split(table, 2, strategy), strict=True)
    ],
}
IN_EAGER = {
    "sharded": lambda table, strategy: ShardedVariable(
        [tf.Variable(t) for t in split(table, 3, strategy)]
    ),
}
IN_SESSION = {"partitioned": lambda table, _: partitioned(table, 3), "ref": lambda t, _: ref(t)}
