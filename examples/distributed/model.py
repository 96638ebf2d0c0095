"""A small model of 26 columns of ids and 13 numbers, and batches to train it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

COLUMNS, ROWS, DIM, NUMBERS, HIDDEN = 26, 1000, 16, 13, 32
BATCH, MAX_IDS = 64, 4

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf.compat.v1.train.AdamOptimizer(0.01),
    "ftrl": lambda: tf.compat.v1.train.FtrlOptimizer(0.1),
}


class Model:
    """Tables, two layers and an optimizer; to be made in the scope of a strategy."""

    def __init__(self, optimizer: str) -> None:
        rng = np.random.default_rng(0)

        def variable(*shape: int) -> Any:
            return tf.Variable(rng.normal(0, 0.1, shape).astype(np.float32))

        self.tables = [variable(ROWS, DIM) for _ in range(COLUMNS)]
        self.hidden = variable(COLUMNS * DIM + NUMBERS, HIDDEN)
        self.last = variable(HIDDEN, 1)
        self.optimizer = OPTIMIZERS[optimizer]()

    def train(self, ids: tf.Tensor, numbers: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Does the step of one replica; returns its part of the loss."""
        columns = [tf.sparse.from_dense(column) for column in tf.unstack(ids, axis=1)]
        with tf.GradientTape() as tape:
            vectors = [
                tf.nn.safe_embedding_lookup_sparse(table, column, combiner="mean")
                for table, column in zip(self.tables, columns, strict=True)
            ]
            hidden = tf.nn.relu(tf.concat([*vectors, numbers], 1) @ self.hidden)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, hidden @ self.last)
            loss = tf.reduce_sum(losses) / BATCH
        variables = self._variables()
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def values(self) -> list[np.ndarray]:
        """What tables and layers hold."""
        return [tf.convert_to_tensor(one).numpy() for one in self._all()]

    def _all(self) -> list[Any]:
        return [*self.tables, self.hidden, self.last]

    def _variables(self) -> list[Any]:
        """All that is trained; a table that parameter servers share is several variables."""
        return [part for one in self._all() for part in getattr(one, "variables", [one])]


def batches(steps: int) -> tf.data.Dataset:
    """So many batches: ids [BATCH, COLUMNS, MAX_IDS] with 0 for none, numbers and labels."""
    rng = np.random.default_rng(1)
    count = steps * BATCH
    ids = rng.integers(1, ROWS, (count, COLUMNS, MAX_IDS))
    ids[rng.random(ids.shape) < 0.4] = 0
    numbers = rng.random((count, NUMBERS)).astype(np.float32)
    labels = (numbers[:, :1] > 0.5).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((ids, numbers, labels))
    return data.batch(BATCH, drop_remainder=True)
