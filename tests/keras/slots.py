"""Keys of slots, the layers for them in both Kerases, and the same by stock TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import fusion.keras.keras3
import fusion.keras.tf_keras

#: Of each Keras: its package, and our layers for it.
FAMILIES: dict[str, tuple[Any, Any]] = {
    "keras3": (keras, fusion.keras.keras3),
    "tf_keras": (tf_keras, fusion.keras.tf_keras),
}

ROWS, DIM, SLOTS, NNZ, BATCH = 8, 4, 3, 2, 16
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((ROWS, DIM)).astype(np.float32)
#: Row 7 is never looked up; stock gives no results behind the last slot with a key.
KEYS = RNG.integers(-1, ROWS - 1, (BATCH, SLOTS, NNZ))
KEYS[0, :2], KEYS[-1, -1] = -1, [3, -1]
LABELS = RNG.integers(0, 2, (BATCH, 1)).astype(np.float32)
#: In which every element of a result counts differently.
FACTORS = {shape: RNG.standard_normal(shape) for shape in [(BATCH, SLOTS, DIM), (*KEYS.shape, DIM)]}


def layer_of(family: str, kind: str, input_dim: int | None = ROWS, /, **arguments: Any) -> Any:
    """A layer of a class by its name, with TABLE if it has so many rows."""
    package, ours = FAMILIES[family]
    if input_dim == ROWS:
        arguments = {"embeddings_initializer": package.initializers.Constant(TABLE)} | arguments
    return getattr(ours, kind)(input_dim, DIM, **arguments)


def ragged(keys: Any = KEYS) -> tf.RaggedTensor:
    """The keys that are not -1, [B, slots, (nnz)]."""
    rows = keys.reshape(-1, keys.shape[2])
    return tf.RaggedTensor.from_uniform_row_length(
        tf.ragged.boolean_mask(rows, rows >= 0), keys.shape[1]
    )


def stock_sums(table: Any, keys: Any, combiner: str) -> tf.Tensor:
    rows = tf.reshape(keys, [-1, NNZ])
    indices = tf.where(rows != -1)
    sparse = tf.SparseTensor(indices, tf.gather_nd(rows, indices), rows.shape)
    found = tf.nn.embedding_lookup_sparse(table, sparse, None, combiner=combiner)
    return tf.reshape(found, [-1, SLOTS, DIM])


def stock_embeddings(table: Any, keys: Any) -> tf.Tensor:
    keys = tf.cast(keys, tf.int64)
    found = tf.nn.embedding_lookup(table, tf.maximum(keys, 0))
    return tf.where((keys == -1)[..., None], 0.0, found)


def trained(look_up: Any, table: Any, keys: Any) -> tuple[tf.Tensor, tf.IndexedSlices]:
    """A result, and a gradient of the table."""
    with tf.GradientTape() as tape:
        result = look_up(keys)
        loss = tf.reduce_sum(tf.cast(result, tf.float32) * FACTORS[tuple(result.shape)])
    return result, tape.gradient(loss, table)


def table_of(layer: Any) -> Any:
    """The variable of TensorFlow that is the weight of a layer, made if need be."""
    layer.build(KEYS.shape)
    (weight,) = layer.trainable_weights
    return weight if isinstance(weight, tf.Variable) else weight.value
