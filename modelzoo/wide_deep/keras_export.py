"""The same model in tf_keras: DenseFeatures in a functional model, saved as an object graph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from modelzoo import criteo
from modelzoo.wide_deep import model


def train_and_export(
    batches: Iterable[criteo.Batch],
    rows: Mapping[str, int],
    path: str | os.PathLike[str],
    *,
    dim: int = model.EMBEDDING_DIM,
    seed: int = 0,
) -> list[float]:
    """Trains on `batches`, one step each, and writes a SavedModel to `path`.

    Arguments, signatures and result are those of `graph_export.train_and_export`.
    """
    tf_keras.utils.set_random_seed(seed)
    network = _network(model.feature_columns(rows, dim))
    network.compile(
        optimizer=tf_keras.optimizers.legacy.Adagrad(0.05),
        loss=tf_keras.losses.BinaryCrossentropy(from_logits=True),
    )
    losses = [float(network.train_on_batch(batch.features, batch.labels)) for batch in batches]
    tf.saved_model.save(network, os.fspath(path), signatures=_signatures(network))
    return losses


def _network(columns: model.Columns) -> Any:
    dtypes = dict.fromkeys(criteo.NUMERIC, "float32") | dict.fromkeys(criteo.CATEGORICAL, "int64")
    inputs = {
        name: tf_keras.Input(shape=(1,), name=name, dtype=dtype) for name, dtype in dtypes.items()
    }
    wide = tf_keras.layers.Dense(1, name="wide_logits")(
        tf_keras.layers.DenseFeatures(columns.wide, name="wide_features")(inputs)
    )
    hidden = tf_keras.layers.DenseFeatures(columns.deep, name="embeddings")(inputs)
    for layer, units in enumerate(model.HIDDEN_UNITS):
        hidden = tf_keras.layers.Dense(units, "relu", name=f"hidden_{layer}")(hidden)
    deep = tf_keras.layers.Dense(1, name="deep_logits")(hidden)
    return tf_keras.Model(inputs, tf_keras.layers.Add(name="logits")([wide, deep]))


def _signatures(network: Any) -> dict[str, Any]:
    specs = {
        name: tf.TensorSpec([None, 1], tensor.dtype, name) for name, tensor in network.input.items()
    }
    embeddings = network.get_layer("embeddings")

    @tf.function(input_signature=[specs])
    def serve(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = network(features, training=False)
        return {"logits": logits, "probabilities": tf.sigmoid(logits)}

    @tf.function(input_signature=[{name: specs[name] for name in criteo.CATEGORICAL}])
    def embed(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"embeddings": embeddings(features)}

    return {"serving_default": serve, "embeddings": embed}
