"""TFRecords of tf.Examples: `tf.data`'s pipeline alone, and the `fit` of a model that it feeds.

An Example has 26 ids, 13 numbers and a label. The model is a DeepFM: embeddings of dimension 16 of
100,000 rows, linear weights, and three dense layers; plain gradient descent, batch 512. The same
epochs run as they are and under `fusion.fused()`, in turns in one process.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from benchmarks.case import Row
from benchmarks.measure import calls_in_turns, quartiles, ratios

_IDS, _NUMBERS, _LABEL = [f"C{k}" for k in range(26)], [f"I{k}" for k in range(13)], "label"
_ROWS, _DIM, _LAYERS, _BATCH = 100_000, 16, (256, 128, 64), 512

FEATURES = {
    **{name: tf.io.FixedLenFeature([1], tf.int64) for name in (*_IDS, _LABEL)},
    **{name: tf.io.FixedLenFeature([1], tf.float32) for name in _NUMBERS},
}


def write_file(path: Path, examples: int) -> None:
    """Writes random Examples."""
    generator = np.random.default_rng(1)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(examples):
            example = tf.train.Example()
            feature = example.features.feature
            for name, number in zip(_IDS, generator.integers(0, _ROWS, len(_IDS)), strict=True):
                feature[name].int64_list.value.append(int(number))
            for name, number in zip(_NUMBERS, generator.random(len(_NUMBERS)), strict=True):
                feature[name].float_list.value.append(float(number))
            feature[_LABEL].int64_list.value.append(int(generator.integers(2)))
            writer.write(example.SerializeToString())


def batches(path: Path) -> tf.data.Dataset:
    """What one would write: batches, which two threads parse."""

    def parse(examples: tf.Tensor) -> Any:
        parsed = tf.io.parse_example(examples, FEATURES)
        return parsed, tf.cast(parsed.pop(_LABEL), tf.float32)

    records = tf.data.TFRecordDataset(str(path)).batch(_BATCH)
    return records.map(parse, num_parallel_calls=2).prefetch(2)


def _model() -> keras.Model:
    """A DeepFM of Keras 3, the same each time."""
    keras.utils.set_random_seed(1)
    ids = {name: keras.Input((1,), dtype="int64", name=name) for name in _IDS}
    numbers = {name: keras.Input((1,), name=name) for name in _NUMBERS}
    rows, weights = (
        keras.layers.Concatenate()(
            [keras.layers.Flatten()(keras.layers.Embedding(_ROWS, dim)(x)) for x in ids.values()]
        )
        for dim in (_DIM, 1)
    )
    fields = keras.layers.Reshape((len(_IDS), _DIM))(rows)
    square = keras.ops.square(keras.ops.sum(fields, 1))
    pairs = keras.ops.sum(square - keras.ops.sum(keras.ops.square(fields), 1), -1, keepdims=True)
    hidden = keras.layers.Concatenate()([rows, *numbers.values()])
    for units in _LAYERS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    linear = keras.ops.sum(weights, -1, keepdims=True)
    logits = keras.layers.Dense(1)(hidden) + linear + 0.5 * pairs
    model = keras.Model({**ids, **numbers}, keras.layers.Activation("sigmoid")(logits))
    model.compile(keras.optimizers.SGD(0.01), "binary_crossentropy")
    return model


def _under(fuses: bool) -> contextlib.AbstractContextManager[None]:
    return fusion.fused() if fuses else contextlib.nullcontext()


def _epoch(path: Path, fuses: bool) -> Callable[[], None]:
    def run() -> None:
        with _under(fuses):
            for _ in batches(path):
                pass

    return run


def _fit(path: Path, fuses: bool) -> Callable[[], float]:
    model = _model()

    def run() -> float:
        with _under(fuses):
            history = model.fit(batches(path), verbose=0).history
        return float(history["loss"][0])

    return run


def _compare(path: Path) -> None:
    """Raises AssertionError: a batch differs, or the fused op did not run."""
    with fusion.fused():
        fused = [*batches(path)]
    for (features, labels), (others, other_labels) in zip(fused, batches(path), strict=True):
        np.testing.assert_array_equal(labels, other_labels)
        for name, values in others.items():
            np.testing.assert_array_equal(features[name], values)
    assert any(op.op == "FusedParseExample" for op in fusion.stats().ops), "not fused"


def measure(part: str, examples: int, seconds: float) -> Iterator[Row]:
    """Yields Examples a second of each side.

    Args:
        part: "pipeline" or "fit".
        examples: of an epoch.
        seconds: for each side.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.tfrecord"
        write_file(path, examples)
        _compare(path)
        make = _epoch if part == "pipeline" else _fit
        calls = {"stock": make(path, False), "fused": make(path, True)}
        if part == "fit":
            losses = [call() for call in calls.values()]
            assert losses[0] == losses[1], f"losses differ: {losses}"
        times = calls_in_turns(calls, 2 * seconds)
    speeds = {
        f"{side}, thousand/s": quartiles([examples / one / 1e3 for one in found])
        for side, found in times.items()
    }
    values = {**speeds, "times as fast": ratios(times["stock"], times["fused"])}
    yield Row({"TFRecords": part, "batch": _BATCH}, values, "Examples of TFRecords a second")
