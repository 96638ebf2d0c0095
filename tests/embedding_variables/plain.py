"""Plain tables of n rows, with the initial values that an embedding variable has for 0 to n - 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.tables import EmbeddingVariable

Array = Any


def keyed(dim: int, capacity: int, dtype: str = "float32", **arguments: Any) -> EmbeddingVariable:
    """An embedding variable of random rows; all of one dimension have the same."""
    initializer = tf.keras.initializers.RandomNormal(seed=5)
    arguments = {"initializer": initializer, "seed": 11} | arguments
    return EmbeddingVariable("keyed", dim, dtype, capacity=capacity, **arguments)


def initial_values(dim: int, rows: int, dtype: str = "float32") -> Array:
    """The rows that keys 0 to rows - 1 begin with, [rows, dim]."""
    table = keyed(dim, rows, dtype)
    with tf.GradientTape():
        return table.embedding_lookup(tf.range(rows, dtype=tf.int64)).numpy()


def rows_of(table: EmbeddingVariable, keys: Any) -> tf.Tensor:
    """The row of each key, -1 for none."""
    return ops.keyed_embedding_gather(
        table=table.table.handle,
        index=table.index.handle,
        initial=table.initial.handle,
        keys=tf.constant(keys, tf.int64),
        counts=tf.zeros([0], tf.int32),
        step=tf.constant(-1, tf.int64),
        T=table.dtype,
        dim=table.dimension,
    ).rows


def by_key(table: EmbeddingVariable, values: Array, count: int) -> tuple[Array, Array]:
    """Rows of the table by key, 0 to count - 1, zeros for those without; and which have one."""
    rows = rows_of(table, np.arange(count)).numpy()
    return np.where(rows[:, None] >= 0, values[rows], 0), rows >= 0


def loss_of_step(model: Any, features: Any, labels: Any) -> float:
    """The loss of a step of a Keras model."""
    model.reset_metrics()  # else Keras 3.6 gives the mean of all steps
    return float(model.train_on_batch(features, labels))
