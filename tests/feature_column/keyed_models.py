"""Layers over columns whose ids have no bound, in both Kerases, beside ones over plain tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from fusion import feature_column as fc
from fusion.optimizers import keras3 as ours_of_keras3
from fusion.optimizers import tf_keras as ours_of_tf_keras
from fusion.tables import EmbeddingVariable, EmbeddingVariableOption

#: Keys of training are in [0, ROWS).
ROWS, DIM, BATCH, STEPS = 40, 4, 16, 5
CAPACITY = EmbeddingVariableOption(capacity=3 * ROWS)
Features = dict[str, Any]


@dataclass(frozen=True)
class Host:
    """A Keras: its package, the layer of columns, and the optimizers of this package for it."""

    keras: Any
    dense_features: Any
    ours: Any

    def optimizer(self, name: str) -> Any:
        """An optimizer whose updates of sparse gradients move no other rows."""
        rate = 0.25
        if name == "sgd":
            return self.keras.optimizers.SGD(rate)
        if name == "momentum":
            return self.ours.LazyMomentum(rate, 0.5)
        kinds = {"adagrad": "Adagrad", "adam": "LazyAdam", "ftrl": "LazyFtrl"}
        return getattr(self.ours, kinds[name])(rate)


HOSTS = {
    "keras3": Host(keras, fc.DenseFeatures, ours_of_keras3),
    "tf_keras": Host(tf_keras, tf_keras.layers.DenseFeatures, ours_of_tf_keras),
}
OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "ftrl")


def _ids(seed: int, first: int) -> Any:
    return first + np.random.default_rng(seed).integers(0, ROWS, (BATCH, 3))


def _dense(seed: int, first: int) -> Features:
    return {"a": tf.constant(_ids(seed, first), tf.int64)}


def _ragged(seed: int, first: int) -> Features:
    lengths = np.random.default_rng(seed).integers(0, 4, BATCH)
    ids = np.random.default_rng(seed).integers(0, ROWS, lengths.sum()) + first
    return {"a": tf.RaggedTensor.from_row_lengths(tf.constant(ids, tf.int64), lengths)}


def _sparse(seed: int, first: int) -> Features:
    return {"a": _ragged(seed, first)["a"].to_sparse()}


def _weighted(seed: int, first: int) -> Features:
    ids = tf.sparse.from_dense(_dense(seed, first)["a"] + 1)
    weights = np.random.default_rng(seed).random(ids.values.shape[0]).astype(np.float32)
    ids = tf.SparseTensor(ids.indices, ids.values - 1, ids.dense_shape)
    return {"a": ids, "w": tf.SparseTensor(ids.indices, weights, ids.dense_shape)}


def _words(seed: int, first: int) -> Features:
    return {"a": tf.strings.as_string(_dense(seed, first)["a"])}


def _identity() -> Any:
    return tf.feature_column.categorical_column_with_identity("a", ROWS)


def _keyed(dtype: tf.DType = tf.int64) -> Any:
    return fc.categorical_column_with_embedding("a", dtype, ev_option=CAPACITY)


@dataclass(frozen=True)
class Kind:
    """Features of a seed, with ids from a number on, and the two categorical columns of them."""

    features: Callable[[int, int], Features]
    keyed: Callable[[], Any]
    plain: Callable[[], Any]


def _with_weights(column: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: tf.feature_column.weighted_categorical_column(column(), "w")


KINDS = {
    "dense": Kind(_dense, _keyed, _identity),
    "sparse": Kind(_sparse, _keyed, _identity),
    "ragged": Kind(_ragged, _keyed, _identity),
    "weighted": Kind(_weighted, _with_weights(_keyed), _with_weights(_identity)),
    "strings": Kind(
        _words,
        lambda: _keyed(tf.string),
        lambda: tf.feature_column.categorical_column_with_vocabulary_list(
            "a", [str(k) for k in range(ROWS)]
        ),
    ),
}


def embedding(categorical: Any, do_fusion: str | None, **arguments: Any) -> Any:
    """A column whose rows all begin with one value, so that two tables begin alike."""
    initializer = tf.constant_initializer(0.125)
    return fc.embedding_column(
        categorical, DIM, initializer=initializer, do_fusion=do_fusion, **arguments
    )


def train(
    host: Host, column: Any, features: Sequence[Features], optimizer: Any, compiled: bool = True
) -> tuple[Any, list[float]]:
    """A layer of a column, trained with a GradientTape on one batch after the other; the losses."""
    layer = host.dense_features([column])
    layer(features[0])
    optimizer.build(layer.trainable_variables)
    signs = tf.constant(np.resize([1.0, -1.0, 0.5], (BATCH, DIM)), tf.float32)

    def step(batch: Features) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(batch, training=True) - signs))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return loss

    run = tf.function(step, reduce_retracing=True) if compiled else step
    return layer, [float(run(batch)) for batch in features]


def table_of(layer: Any) -> EmbeddingVariable:
    """The embedding variable of a layer of one column."""
    (table,) = layer.trainable_variables
    variable = EmbeddingVariable.of(table)
    assert variable is not None
    return variable


def known(variable: EmbeddingVariable, keys: Any) -> list[bool]:
    """Which keys have rows: those that do not read the default value, zeros."""
    rows = variable.embedding_lookup(keys)
    return [bool(has_row) for has_row in np.any(rows.numpy() != 0, -1)]
