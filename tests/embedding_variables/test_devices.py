"""Embedding variables beside a GPU. Where there is none, what is placed on one runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.distribute import device_util

import fusion
from fusion import EmbeddingVariable

GPU, CPU = (f"/job:localhost/replica:0/task:0/device:{kind}:0" for kind in ("GPU", "CPU"))
SCOPES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": lambda: tf.device(None),
    "GPU": lambda: tf.device("GPU:0"),
    "CPU": lambda: tf.device("CPU:0"),
    "strategy": lambda: tf.distribute.OneDeviceStrategy("GPU:0").scope(),
}


@contextmanager
def devices() -> Iterator[dict[str, set[str]]]:
    """The names of the layers, or tables, whose variables are made on each device."""
    found: dict[str, set[str]] = {}

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        found.setdefault(device_util.current(), set()).add(arguments["name"].partition("/")[0])
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield found


@pytest.mark.parametrize("scope", SCOPES)
def test_tables_are_on_the_cpu(scope: str):
    with devices() as found, SCOPES[scope]():
        EmbeddingVariable("table", 2, capacity=9)
    assert found == {CPU: {"table", "key_index", "initial_rows"}}


def test_tables_of_a_graph_are_not_on_the_gpu_that_is_chosen():
    with tf.Graph().as_default():
        assert EmbeddingVariable("first", 2).device == ""
        with tf.device("GPU:0"):
            assert EmbeddingVariable("second", 2).device == "/device:CPU:0"


def of_module(path: str) -> None:
    module = tf.Module()
    module.table, module.plain = EmbeddingVariable("table", 2), tf.Variable(1.0, name="plain")
    tf.saved_model.save(module, path)


def of_keras(path: str) -> None:
    inputs = keras.Input([3], dtype="int64")
    rows = fusion.keras.layers.DynamicEmbedding(2, name="table")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="plain")(rows))
    model.export(path, verbose=False)


@pytest.mark.parametrize("save", [of_module, of_keras])
def test_saved_models_have_tables_on_the_cpu(tmp_path: Path, save: Callable[[str], None]):
    save(str(tmp_path))
    with devices() as found, tf.device("GPU:0"):
        tf.saved_model.load(str(tmp_path))
    assert found == {GPU: {"plain"}, CPU: {"table"}}


def test_updates_of_tf_keras_are_not_compiled_for_a_gpu():
    plain, table = tf.Variable([[1.0]]), EmbeddingVariable("table", 2, capacity=9).table
    for variable, expected in ((plain, True), (table, False)):
        optimizer = tf_keras.optimizers.Adam()
        optimizer.jit_compile = True  # as where there is a GPU
        optimizer.build([plain, variable])
        assert optimizer.jit_compile is expected
