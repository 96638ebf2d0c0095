"""A small model of 26 columns of ids and 13 numbers, and batches to train it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

COLUMNS, ROWS, DIM, NUMBERS = 26, 1000, 16, 13
BATCH = 64
MOST_IDS = 4

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf.compat.v1.train.AdamOptimizer(0.01),
}


class Model:
    """Tables, two layers and an optimizer. To be made in the scope of a strategy."""

    def __init__(self, optimizer: str) -> None:
        rng = np.random.default_rng(0)

        def variable(name: str, *shape: int) -> Any:
            start = rng.normal(0, 0.1, shape).astype(np.float32)
            return tf.Variable(start, name=name)

        self.tables = [variable(f"table_{n}", ROWS, DIM) for n in range(COLUMNS)]
        self.layers = [
            variable("hidden", COLUMNS * DIM + NUMBERS, 32),
            variable("last", 32, 1),
        ]
        self.optimizer = OPTIMIZERS[optimizer]()

    @property
    def variables(self) -> list[Any]:
        """All that is trained; of a sharded table, each shard."""
        everything = [*self.tables, *self.layers]
        print([(type(v), hasattr(v,"variables")) for v in everything][-3:])
        parts = [getattr(variable, "variables", [variable]) for variable in everything]
        return [part for several in parts for part in several]

    def train(self, batch: Any) -> tf.Tensor:
        """One step of one replica; returns its part of the loss."""
        ids, numbers, labels = batch
        with tf.GradientTape() as tape:
            vectors = [
                tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(column), combiner="mean")
                for table, column in zip(self.tables, tf.unstack(ids, axis=1), strict=True)
            ]
            hidden = tf.nn.relu(tf.concat([*vectors, numbers], 1) @ self.layers[0])
            logits = hidden @ self.layers[1]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def values(self) -> list[np.ndarray]:
        """The values of tables and layers."""
        return [tf.convert_to_tensor(variable).numpy() for variable in (*self.tables, *self.layers)]


def batches(steps: int) -> tf.data.Dataset:
    """So many batches, always the same: ids [BATCH, 26, 4] with 0 for none, numbers, labels."""
    rng = np.random.default_rng(1)
    count = steps * BATCH
    ids = rng.integers(1, ROWS, (count, COLUMNS, MOST_IDS))
    ids[rng.random(ids.shape) < 0.4] = 0
    numbers = rng.random((count, NUMBERS)).astype(np.float32)
    labels = rng.integers(0, 2, (count, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, numbers, labels)).batch(BATCH, drop_remainder=True)
