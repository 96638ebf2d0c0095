"""Training and export through a compat.v1 Session, as an Estimator does both.

Training runs in one graph and saves a checkpoint; a second graph holds the prediction alone, is
restored from that checkpoint and becomes the SavedModel.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping

import tensorflow as tf

from modelzoo import criteo
from modelzoo.wide_deep import model

v1 = tf.compat.v1


def train_and_export(
    batches: Iterable[criteo.Batch],
    rows: Mapping[str, int],
    path: str | os.PathLike[str],
    *,
    dim: int = model.EMBEDDING_DIM,
    seed: int = 0,
) -> list[float]:
    """Trains on `batches`, one step each, and writes a SavedModel to `path`.

    The signature `serving_default` maps one tensor per feature to `logits` and `probabilities`;
    the signature `embeddings` stops at the deep part's input, for measurements.

    Args:
        batches: the training data.
        rows: number of ids of each categorical feature.
        path: directory to create.
        dim: embedding dimension of every column.
        seed: seed of the initial values.

    Returns:
        The loss of each step.
    """
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = str(pathlib.Path(directory, "model"))
        losses = _train(batches, model.feature_columns(rows, dim), checkpoint, seed)
        _export(model.feature_columns(rows, dim), checkpoint, os.fspath(path))
    return losses


def _train(
    batches: Iterable[criteo.Batch], columns: model.Columns, checkpoint: str, seed: int
) -> list[float]:
    with tf.Graph().as_default():
        v1.set_random_seed(seed)
        features = model.placeholders()
        labels = v1.placeholder(tf.float32, [None, 1], name="label")
        outputs = model.build(features, columns)
        loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=outputs.logits)
        )
        step = _train_op(loss)
        saver = v1.train.Saver(v1.trainable_variables())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = []
            for batch in batches:
                feeds = {features[name]: batch.features[name] for name in features}
                losses.append(float(session.run([loss, step], {**feeds, labels: batch.labels})[0]))
            saver.save(session, checkpoint, write_meta_graph=False)
    return losses


def _train_op(loss: tf.Tensor) -> tf.Operation:
    """Returns a step of the optimizers that Estimators use: Ftrl (wide), Adagrad (deep)."""
    wide = v1.train.FtrlOptimizer(0.05).minimize(
        loss, var_list=v1.trainable_variables(scope="wide")
    )
    deep = v1.train.AdagradOptimizer(0.05).minimize(
        loss, var_list=v1.trainable_variables(scope="deep")
    )
    return tf.group(wide, deep)


def _export(columns: model.Columns, checkpoint: str, path: str) -> None:
    with tf.Graph().as_default():
        features = model.placeholders()
        outputs = model.build(features, columns)
        categorical = {name: features[name] for name in criteo.CATEGORICAL}
        signatures = {
            "serving_default": _signature(
                features, {"logits": outputs.logits, "probabilities": outputs.probabilities}
            ),
            "embeddings": _signature(categorical, {"embeddings": outputs.embeddings}),
        }
        with v1.Session() as session:
            v1.train.Saver().restore(session, checkpoint)
            builder = v1.saved_model.Builder(path)
            builder.add_meta_graph_and_variables(
                session,
                [tf.saved_model.SERVING],
                signature_def_map=signatures,
                strip_default_attrs=True,
            )
            builder.save()


def _signature(inputs: Mapping[str, tf.Tensor], outputs: Mapping[str, tf.Tensor]) -> object:
    return v1.saved_model.predict_signature_def(dict(inputs), dict(outputs))
