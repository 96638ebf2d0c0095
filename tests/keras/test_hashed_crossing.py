"""HashedCrossing of both Kerases in front of embeddings: bits, shapes and errors are stock's."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.schema.names import GROUPED_CROSS

BINS, DIM = 40, 3
TEXTS = np.array([b"a", b"bb", b"", b"a", b"\xff\x00"], object)
NUMBERS = np.array([5, -7, 123456789012, 5, 0])
KERASES = pytest.mark.parametrize("kind", [keras, tf_keras], ids=["keras", "tf_keras"])


def model_of(kind: Any, shape: tuple[int, ...], ends: str) -> Any:
    """A model of two crosses of a text and a number, each with an embedding."""
    text, number = kind.Input(shape, dtype="string"), kind.Input(shape, dtype="int64")
    rows = []
    for pair in ([text, number], [number, text]):
        ids = kind.layers.HashedCrossing(num_bins=BINS)(pair)
        row = kind.layers.Embedding(BINS, DIM)(ids)
        rows.append(kind.layers.Flatten()(row) if ends == "flat" else row)
    joined = kind.layers.Concatenate(axis=-1)(rows)
    return kind.Model([text, number], joined)


def outcome(function: Any, shape: tuple[int, ...], count: int) -> Any:
    """What a function makes of some rows, or the type of its error."""
    inputs = [tf.reshape(tf.constant(one)[:count], [count, *shape]) for one in (TEXTS, NUMBERS)]
    try:
        return function(*inputs).numpy()
    except tf.errors.InvalidArgumentError as error:
        return type(error)


def graph_of(model: Any, shape: tuple[int, ...]) -> Any:
    """A model as a graph function of any number of rows."""
    specs = [tf.TensorSpec([None, *shape], dtype) for dtype in (tf.string, tf.int64)]
    return tf.function(lambda *inputs: model([*inputs]), input_signature=specs)


def fused_crosses(report: Any) -> list[int]:
    return [one.crosses for one in report.crosses if one.fused]


@KERASES
@pytest.mark.parametrize(
    ("shape", "ends"), [((), "rows"), ((1,), "flat"), ((1,), "rows")], ids=["B", "B1 flat", "B1"]
)
def test_crosses_of_dense_inputs(kind: Any, shape: tuple[int, ...], ends: str) -> None:
    model = model_of(kind, shape, ends)
    stock = graph_of(model, shape)
    # Without rows Keras 3 fails on vectors, and so do we.
    counts = (5, 1, 0)
    expected = [outcome(stock, shape, count) for count in counts]
    with fusion.fused():
        fused = graph_of(model, shape)
        found = [outcome(fused, shape, count) for count in counts]
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, type):
            assert one == other
        else:
            assert one.shape == other.shape
            np.testing.assert_array_equal(one, other)
    report = fusion.stats().last_report
    assert report is not None
    assert fused_crosses(report) == [2]


@KERASES
def test_exported_models(kind: Any, tmp_path: Any) -> None:
    model, shape = model_of(kind, (1,), "flat"), (1,)
    module = tf.Module()
    module.model = model
    signature = graph_of(model, shape)
    tf.saved_model.save(module, str(tmp_path / "stock"), signatures=signature)
    report = fusion.fuse_saved_model(tmp_path / "stock", tmp_path / "fused")
    assert {*fused_crosses(report)} == {2}  # in the copies that Kerases make of functions
    assert "2 crossed columns" in str(report)
    loaded = tf.saved_model.load(str(tmp_path / "fused")).signatures["serving_default"]
    definition = loaded.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    assert GROUPED_CROSS in {node.op for node in nodes}

    def answers(text: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        names = sorted(loaded.structured_input_signature[1])
        specs = loaded.structured_input_signature[1]
        texts = [name for name in names if specs[name].dtype == tf.string]
        inputs = {name: text if name in texts else number for name in names}
        return next(iter(loaded(**inputs).values()))

    np.testing.assert_array_equal(outcome(answers, shape, 5), outcome(signature, shape, 5))


@KERASES
def test_one_hot_crosses_are_what_they_were(kind: Any) -> None:
    text, number = kind.Input((1,), dtype="string"), kind.Input((1,), dtype="int64")
    layer = kind.layers.HashedCrossing(num_bins=BINS, output_mode="one_hot")
    hot = layer([text, number])
    model = kind.Model([text, number], kind.layers.Dense(DIM)(hot))
    expected = outcome(graph_of(model, (1,)), (1,), 5)
    with fusion.fused():
        found = outcome(graph_of(model, (1,)), (1,), 5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
