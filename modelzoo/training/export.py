"""SavedModels of what was trained, for tensors and Examples, whole and of the vectors alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from modelzoo.criteo import MISSING_COUNT, MISSING_ID, NUMERIC
from modelzoo.layers import Columns, GraphLayers, Inputs
from modelzoo.options import Architecture, Model
from modelzoo.signatures import EMBEDDINGS, EXAMPLES, SERVING
from modelzoo.training.steps import KerasSteps

v1 = tf.compat.v1


def parsing(inputs: Inputs) -> dict[str, Any]:
    """What an Example holds: a number or none for each count, and an id or several."""
    kind = tf.int64 if inputs.whole_counts else tf.float32
    missing = kind.as_numpy_dtype(MISSING_COUNT)
    counts = {name: tf.io.FixedLenFeature([1], kind, [missing]) for name in NUMERIC}
    ids = {
        name: tf.io.VarLenFeature(tf.int64)
        if name in inputs.lists
        else tf.io.FixedLenFeature([1], tf.int64, [MISSING_ID])
        for name in inputs.rows
    }
    return counts | ids


def _parsed(examples: Any, inputs: Inputs) -> dict[str, Any]:
    """The features of serialized Examples."""
    features: dict[str, Any] = tf.io.parse_example(examples, parsing(inputs))
    return features | {name: tf.cast(features[name], tf.float32) for name in NUMERIC}


def export_keras(steps: KerasSteps, inputs: Inputs, path: Path) -> None:
    """Writes a SavedModel of a Keras model.

    The signature `serving_default` takes a tensor for each feature and gives `logits` and
    `probabilities`, float32 [n, 1]; `parse_example` takes serialized Examples, `examples` [n].
    `embeddings` takes the categorical features and gives what the embedding columns do, by the
    names that the model has for them.
    """
    archive = keras.export.ExportArchive()
    archive.track(steps.model)

    def serve(features: Any) -> dict[str, Any]:
        return outputs(steps.model(features, training=False))

    def of_examples(examples: Any) -> dict[str, Any]:
        return serve(_parsed(examples, inputs))

    def embed(ids: Any) -> dict[str, Any]:
        return dict(steps.embeddings(ids, training=False))

    specs = inputs.specs()
    archive.add_endpoint(SERVING, serve, [specs])
    archive.add_endpoint(EMBEDDINGS, embed, [{name: specs[name] for name in inputs.rows}])
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
        # Nothing is drawn, but deterministic ops ask for one.
        v1.set_random_seed(0)
        examples = v1.placeholder(tf.string, [None], name="examples")
        parsed = _parsed(examples, columns.inputs)
        # Whoever has tensors feeds them in the place of what is parsed.
        features = {name: _that_may_be_fed(parsed[name], name) for name in columns.inputs.specs()}
        layers = GraphLayers(columns, features)
        logits = model.logits(layers, shape)
        ids = {name: features[name] for name in columns.inputs.rows}
        v1.train.Saver().restore(session, str(checkpoint))
        predict = v1.saved_model.predict_signature_def
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {
                SERVING: predict(features, outputs(logits)),
                EXAMPLES: predict({"examples": examples}, outputs(logits)),
                EMBEDDINGS: predict(ids, layers.embedded),
            },
            strip_default_attrs=True,
        )
        builder.save()


def _that_may_be_fed(parsed: Any, name: str) -> Any:
    if isinstance(parsed, tf.SparseTensor):
        parts = {"indices": parsed.indices, "values": parsed.values, "shape": parsed.dense_shape}
        fed = [_that_may_be_fed(part, f"{name}_{key}") for key, part in parts.items()]
        return tf.SparseTensor(*fed)
    return v1.placeholder_with_default(parsed, parsed.shape, name)
