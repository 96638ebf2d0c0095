"""Models that are split and served: that of NVIDIA's tutorial, and one of more lookups."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

ROWS, SLOTS, DIMENSION = 300, 3, 16
USERS, ITEMS = 50, 90


class Tutorial(tf.Module):
    """One table, three keys an example, and three layers without activation."""

    def __init__(self) -> None:
        super().__init__()
        normal = tf.random.stateless_normal
        self.params = tf.Variable(normal([ROWS, DIMENSION], [1, 2]), name="params")
        widths = [SLOTS * DIMENSION, 256, 128, 1]
        self.kernels = [
            tf.Variable(normal(shape, [3, k]) / 8)
            for k, shape in enumerate(itertools.pairwise(widths))
        ]

    @tf.function(input_signature=[tf.TensorSpec([None, SLOTS], tf.int64, "keys")])
    def serve(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.nn.embedding_lookup(self.params, keys)
        found = tf.reshape(found, [-1, SLOTS * DIMENSION])
        for kernel in self.kernels:
            found = found @ kernel
        return {"logit": found}


class Shop(tf.Module):
    """Three lookups in two tables, other inputs, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        normal = tf.random.stateless_normal
        self.users = tf.Variable(normal([USERS, 4], [1, 2]), name="users")
        self.items = tf.Variable(normal([ITEMS, 8], [3, 4]), name="items")
        self.kernel = tf.Variable(normal([29, 1], [5, 6]))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user"),
            tf.TensorSpec([None, 2], tf.int64, "seen"),
            tf.TensorSpec([None], tf.int64, "item"),
            tf.TensorSpec([None, 1], tf.float32, "price"),
            tf.TensorSpec([None], tf.string, "word"),
        ]
    )
    def serve(
        self, user: tf.Tensor, seen: tf.Tensor, item: tf.Tensor, price: tf.Tensor, word: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        parts = [
            tf.gather(self.users, user),
            tf.reshape(tf.nn.embedding_lookup(self.items, seen), [-1, 16]),
            tf.gather(self.items, item),
            price,
        ]
        return {"score": tf.concat(parts, 1) @ self.kernel, "word": tf.strings.upper(word)}


class Bags(tf.Module):
    """Baskets of any number of ids, of which 0 is none."""

    def __init__(self) -> None:
        super().__init__()
        self.items = tf.Variable(tf.random.stateless_normal([ITEMS, 8], [1, 2]), name="items")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64, "items")])
    def serve(self, items: tf.Tensor) -> dict[str, tf.Tensor]:
        basket = tf.sparse.from_dense(items)
        vector = tf.nn.safe_embedding_lookup_sparse(self.items, basket, combiner="mean")
        return {"vector": 2 * vector}


def tutorial_keys(rows: int, seed: int = 0) -> np.ndarray:
    keys: np.ndarray = np.random.default_rng(seed).integers(0, ROWS, (rows, SLOTS))
    return keys


def shop_inputs(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, USERS, rows),
        "seen": rng.integers(0, ITEMS, (rows, 2)),
        "item": rng.integers(0, ITEMS, rows),
        "price": rng.normal(size=(rows, 1)).astype(np.float32),
        "word": np.array([f"word {k}".encode() for k in range(rows)], object),
    }
