"""Optimizer variables of all hosts: they follow the rows of keys, wherever these are."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion import EmbeddingVariable
from fusion.optimizers import LazyAdamOptimizer
from fusion.tables import LeastRecent
from tests.embedding_variables.plain import loss_of_step
from tests.embedding_variables.test_checkpoints import entries

v1 = tf.compat.v1
legacy = tf_keras.optimizers.legacy

DIM = 3
#: Optimizers of a host by name, with arguments.
KERAS: dict[str, dict[str, Any]] = {
    "Adagrad": {},
    "Adam": {},
    "Adam amsgrad": {"amsgrad": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Ftrl": {},
    "SGD": {"momentum": 0.5},
    "SGD average": {"use_ema": True},
    "Adadelta": {},
    "Nadam": {},
    "Adamax": {},
    "Lion": {},
}
LEGACY = {name: KERAS[name] for name in KERAS if name not in ("SGD average", "Lion")}
V1: dict[str, Callable[[], Any]] = {
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.25),
    "Adam": lambda: v1.train.AdamOptimizer(0.25),
    "LazyAdam": lambda: LazyAdamOptimizer(0.25),
    "RMSProp": lambda: v1.train.RMSPropOptimizer(0.25, momentum=0.5, centered=True),
    "Ftrl": lambda: v1.train.FtrlOptimizer(0.25),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.25, 0.5),
    "Adadelta": lambda: v1.train.AdadeltaOptimizer(0.25),
    "ProximalAdagrad": lambda: v1.train.ProximalAdagradOptimizer(0.25),
}


def _maker(module: Any, name: str, arguments: dict[str, Any]) -> Callable[[], Any]:
    return lambda: getattr(module, name.split(maxsplit=1)[0])(0.25, **arguments)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    **{f"keras3 {name}": _maker(keras.optimizers, name, KERAS[name]) for name in KERAS},
    **{f"tf_keras {name}": _maker(tf_keras.optimizers, name, KERAS[name]) for name in KERAS},
    **{f"legacy {name}": _maker(legacy, name, LEGACY[name]) for name in LEGACY},
    **{f"v1 {name}": make for name, make in V1.items()},
}


class Training:
    """A table, an optimizer, and steps of both."""

    def __init__(self, optimizer: str, capacity: int = 40, eviction: Any = None) -> None:
        initializer = tf.keras.initializers.RandomNormal(seed=1)
        self.variable = EmbeddingVariable(
            "table", DIM, initializer=initializer, capacity=capacity, seed=3, eviction=eviction
        )
        self.optimizer = OPTIMIZERS[optimizer]()

    def step(self, *keys: int) -> float:
        """One step; the loss."""
        table = self.variable.table
        factors = tf.reshape(tf.range(1.0, 1 + DIM * len(keys)), [len(keys), DIM])
        with tf.GradientTape() as tape:
            rows = self.variable.embedding_lookup(tf.constant(keys, tf.int64))
            loss = tf.reduce_sum(tf.square(rows * factors - 1))
        self.optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return float(loss)

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(variable=self.variable, optimizer=self.optimizer)


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_restored_checkpoint_goes_on_as_it_would_have(tmp_path: Path, optimizer, is_built):
    first, second = Training(optimizer), Training(optimizer, capacity=50)
    for keys in ((1, 2, 3, 4), (3, 4, 5, 6)):
        first.step(*keys)
    path = first.checkpoint.write(str(tmp_path / "save"))
    if is_built:
        second.step(9, 6, 5, 8)  # whose rows are others
    second.checkpoint.read(path)
    for keys in ((6, 1, 7, 4), (2, 3, 5, 1), (8, 9, 7, 6)):
        assert first.step(*keys) == second.step(*keys)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_of_other_keys_begin_anew(optimizer):
    training = Training(optimizer, capacity=4, eviction=LeastRecent(1))
    fresh = Training(optimizer, capacity=4)
    for made in (training, fresh):
        made.step(100)
    training.step(1)
    training.step(2)
    slots = [slot for slot in training.variable.slots if slot is not None]
    assert slots
    row, unused = entries(training.variable)[1][0], 3
    before = [slot.numpy()[unused] for slot in slots]
    training.variable.evict()
    training.variable.evict()
    for slot, first in zip(slots, before, strict=True):
        np.testing.assert_array_equal(slot.numpy()[row], first)


class Layered:
    """A Keras 3 model with a stock optimizer."""

    def __init__(self, optimizer: str, capacity: int) -> None:
        keras.utils.set_random_seed(1)
        option = fusion.tables.EmbeddingVariableOption(capacity=capacity, seed=4)
        inputs = keras.Input([4], dtype="int64")
        rows = fusion.keras.layers.DynamicEmbedding(DIM, ev_option=option)(inputs)
        self.model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
        self.model.compile(OPTIMIZERS[f"keras3 {optimizer}"](), "mse")

    def step(self, *keys: int) -> float:
        return loss_of_step(self.model, np.array([keys]), np.ones([1, 1]))


@pytest.mark.parametrize("file", ["model.keras", "some.weights.h5"])
@pytest.mark.parametrize("optimizer", KERAS)
def test_keras_files_have_slots_by_keys(tmp_path: Path, optimizer, file):
    first, second = Layered(optimizer, 40), Layered(optimizer, 50)
    for keys in ((1, 2, 3, 4), (3, 4, 5, 6)):
        first.step(*keys)
    second.step(9, 6, 5, 8)  # whose rows are others
    path = tmp_path / file
    if file == "model.keras":
        first.model.save(path)
        second.model = keras.models.load_model(path)
    else:
        first.model.save_weights(path)
        second.model.load_weights(path)
    for keys in ((6, 1, 7, 4), (2, 3, 5, 1), (8, 9, 7, 6)):
        assert first.step(*keys) == second.step(*keys)


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name[:2] in ("v1", "le")])
def test_the_saver_of_v1_has_slots_by_keys(tmp_path: Path, optimizer):
    """Restored without any initialization, and into variables that are trained already."""

    def build(capacity: int) -> tuple[Any, ...]:
        variable = EmbeddingVariable("table", DIM, capacity=capacity, seed=3)
        keys = v1.placeholder(tf.int64, [4])
        factors = tf.reshape(tf.range(1.0, 1 + 4 * DIM), [4, DIM])
        loss = tf.reduce_sum(tf.square(variable.embedding_lookup(keys) * factors - 1))
        made = OPTIMIZERS[optimizer]()
        (gradient,) = tf.gradients(loss, [variable.table])
        train = made.apply_gradients([(gradient, variable.table)])
        train = train if isinstance(train, tf.Operation) else train.op
        # Those of the legacy optimizers are in no collection.
        others = getattr(made, "weights", [])
        variables = list({id(v): v for v in [*v1.global_variables(), *others]}.values())
        return keys, loss, train, v1.train.Saver(variables), v1.variables_initializer(variables)

    def step(session: Any, graph: Any, batch: Any) -> Any:
        return session.run((graph[1], graph[2]), {graph[0]: batch})[0]

    batches = ((6, 1, 7, 4), (2, 3, 5, 1), (8, 9, 7, 6))
    path = str(tmp_path / "save")
    with tf.Graph().as_default(), v1.Session() as session:
        graph = build(40)
        session.run(graph[4])
        for batch in ((1, 2, 3, 4), (3, 4, 5, 6)):
            step(session, graph, batch)
        graph[3].save(session, path)
        expected = [step(session, graph, batch) for batch in batches]
    for is_trained in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            graph = build(50)
            if is_trained:
                session.run(graph[4])
                step(session, graph, (9, 6, 5, 8))
            graph[3].restore(session, path)
            assert [step(session, graph, batch) for batch in batches] == expected


def test_slots_of_rows_and_columns_are_refused():
    for optimizers in (keras.optimizers, tf_keras.optimizers):
        variable = EmbeddingVariable("table", DIM, capacity=9)
        with pytest.raises(NotImplementedError, match="Adafactor has variables of rows"):
            optimizers.Adafactor(0.25).build([variable.table])
    with pytest.raises(NotImplementedError, match=r"has the shape \(9,\), and cannot follow"):
        variable.add_slot(tf.Variable(tf.zeros([9])))
    with pytest.raises(NotImplementedError, match=r"has the shape \(9,\), and cannot follow"):
        legacy.SGD(0.25).add_slot(variable.table, "of_rows", shape=[9])
    with pytest.raises(NotImplementedError, match=r"has the shape \(9,\), and cannot follow"):
        v1.train.MomentumOptimizer(1.0, 0.5)._get_or_make_slot(
            variable.table, tf.zeros([9]), "of_rows", "name"
        )
    assert legacy.SGD(0.25).add_slot(variable.table, "one", shape=[]).shape == []


def test_a_keras_that_is_loaded_after_the_table():
    """Of a process of its own: here it is loaded already."""
    program = """
        import tensorflow as tf
        import fusion

        table = fusion.EmbeddingVariable("table", 2, capacity=50)
        import tf_keras

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table.embedding_lookup(tf.constant([7], tf.int64)))
        optimizer = tf_keras.optimizers.legacy.Adagrad(0.1)
        optimizer.apply_gradients([(tape.gradient(loss, table.table), table.table)])
        assert len(table.slots) == 1
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
