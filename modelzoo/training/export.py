"""SavedModels of what was trained, with a signature for tensors and one for `tf.train.Example`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from modelzoo.criteo import CATEGORICAL, MISSING_COUNT, MISSING_ID, NUMERIC
from modelzoo.layers import Columns, GraphLayers, Inputs
from modelzoo.options import Architecture, Model
from modelzoo.training.steps import KerasSteps, placeholders

v1 = tf.compat.v1

SERVING, EXAMPLES = "serving_default", "parse_example"
"""Names of signatures."""


def parsing(inputs: Inputs) -> dict[str, Any]:
    """What an Example holds: a float or none for each count, an integer for each id, or several."""
    counts = {name: tf.io.FixedLenFeature([1], tf.float32, [MISSING_COUNT]) for name in NUMERIC}
    ids = {
        name: tf.io.VarLenFeature(tf.int64)
        if name in inputs.lists
        else tf.io.FixedLenFeature([1], tf.int64, [MISSING_ID])
        for name in CATEGORICAL
    }
    return counts | ids


def export_keras(steps: KerasSteps, inputs: Inputs, path: Path) -> None:
    """Writes a SavedModel of a Keras model.

    The signature `serving_default` takes a tensor for each feature and gives `logits` and
    `probabilities`, float32 [n, 1]; `parse_example` takes serialized Examples, `examples` [n].
    """
    archive = keras.export.ExportArchive()
    archive.track(steps.model)

    def serve(features: Any) -> dict[str, Any]:
        return outputs(steps.model(features, training=False))

    def of_examples(examples: Any) -> dict[str, Any]:
        return serve(tf.io.parse_example(examples, parsing(inputs)))

    archive.add_endpoint(SERVING, serve, [inputs.specs()])
    archive.add_endpoint(EXAMPLES, of_examples, [tf.TensorSpec([None], tf.string, "examples")])
    archive.write_out(str(path), verbose=False)


def outputs(logits: Any) -> dict[str, Any]:
    """What a signature gives."""
    return {"logits": logits, "probabilities": tf.sigmoid(logits)}


def export_graph(
    model: Model, shape: Architecture, columns: Columns, checkpoint: Path, path: Path
) -> None:
    """Writes a SavedModel of a compat.v1 graph; see `export_keras` for its signatures."""
    with tf.Graph().as_default(), v1.Session() as session:
        features = placeholders(columns)
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            logits = model.logits(GraphLayers(columns, features), shape)
            examples = v1.placeholder(tf.string, [None], name="examples")
            parsed = v1.io.parse_example(examples, parsing(columns.inputs))
            of_examples = model.logits(GraphLayers(columns, parsed), shape)
        v1.train.Saver().restore(session, str(checkpoint))
        predict = v1.saved_model.predict_signature_def
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {
                SERVING: predict(features, outputs(logits)),
                EXAMPLES: predict({"examples": examples}, outputs(of_examples)),
            },
            strip_default_attrs=True,
        )
        builder.save()
