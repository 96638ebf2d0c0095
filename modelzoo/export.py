"""SavedModels of what was trained: whole models, and their embeddings alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from modelzoo.criteo import NUMERIC
from modelzoo.layers import Embeddings, GraphLayers, placeholders
from modelzoo.models import MODELS

v1 = tf.compat.v1

SERVING = "serving_default"
"""The signature with a tensor [n, 1] for each feature -> `logits` and `probabilities` [n, 1]."""

EMBEDDINGS = "embeddings"
"""The one with a tensor for each categorical feature -> what is looked up, before dense layers."""


def _outputs(logits: Any) -> dict[str, Any]:
    return {"logits": logits, "probabilities": tf.sigmoid(logits)}


def export_keras(model: keras.Model, embeddings: keras.Model, path: Path) -> None:
    """Writes a SavedModel of what `keras_model` made."""

    def specs(names: Any) -> list[dict[str, Any]]:
        dtypes = {name: tf.float32 if name in NUMERIC else tf.int64 for name in names}
        return [{name: tf.TensorSpec([None, 1], dtype, name) for name, dtype in dtypes.items()}]

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(SERVING, lambda features: _outputs(model(features)), specs(model.input))
    archive.add_endpoint(EMBEDDINGS, lambda ids: dict(embeddings(ids)), specs(embeddings.input))
    archive.write_out(str(path), verbose=False)


def export_graph(
    name: str, embeddings: Embeddings, checkpoint: str, path: Path, **sizes: Any
) -> None:
    """Writes a SavedModel of a compat.v1 model with the variables of a checkpoint."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(0)  # nothing is drawn, but deterministic ops ask for one
        features = placeholders(embeddings)
        layers = GraphLayers(embeddings, features)
        logits = MODELS[name](layers, **sizes)
        v1.train.Saver().restore(session, checkpoint)
        ids = {feature: features[feature] for feature in embeddings.rows}
        predict = v1.saved_model.predict_signature_def
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {
                SERVING: predict(features, _outputs(logits)),
                EMBEDDINGS: predict(ids, layers.embedded),
            },
            strip_default_attrs=True,
        )
        builder.save()
