"""The variables of an embedding variable, and the ops that use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops

Array = Any


def zeros(rows: int, dim: int, dtype: str = "float32") -> tf.Tensor:
    return ops.zeros_on_demand(shape=tf.constant([rows, dim], tf.int64), T=dtype)


def empty_index(capacity: int, admission: int = 1, seed: int = 0, waits: bool = False) -> tf.Tensor:
    return ops.embedding_key_index(
        capacity=tf.constant([capacity], tf.int64), admission=admission, seed=seed, waits=waits
    )


class KeyedTable:
    """A table [capacity, dim] of keys; `initial` is the default row and samples."""

    def __init__(
        self,
        capacity: int,
        dim: int,
        dtype: str = "float32",
        initial: Array = None,
        **index: Any,
    ) -> None:
        if initial is None:
            initial = np.random.default_rng(0).normal(size=[9, dim])
        self.dim, self.dtype = dim, dtype
        self.default = np.asarray(initial[0], dtype)
        self.samples = np.asarray(initial[1:], dtype)
        self.table = tf.Variable(zeros(capacity, dim, dtype))
        self.index = tf.Variable(empty_index(capacity, **index))
        self.initial = tf.Variable(tf.constant(np.asarray(initial), dtype))

    def arguments(self, keys: Any, /, **changes: Any) -> dict[str, Any]:
        """Those of `keyed_embedding_gather`."""
        given = {
            "table": self.table.handle,
            "index": self.index.handle,
            "initial": self.initial.handle,
            "keys": keys if tf.is_tensor(keys) else tf.constant(keys, tf.int64),
            "counts": tf.zeros([0], tf.int32),
            "step": tf.constant(-1, tf.int64),
            "T": self.dtype,
            "dim": self.dim,
        }
        return given | changes

    def gather(self, keys: Any, /, **changes: Any) -> tuple[Array, Array]:
        """Embeddings and rows."""
        found = ops.keyed_embedding_gather(**self.arguments(keys, **changes))
        return found.embeddings.numpy(), found.rows.numpy()

    def train(self, keys: Any, /, **changes: Any) -> tuple[Array, Array]:
        return self.gather(keys, is_training=True, **changes)
