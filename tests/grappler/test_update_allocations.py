"""No step of an optimizer allocates what a table has, where the update is one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from tests.grappler.allocations import SMALLEST, allocations

ROWS, DIM, BATCH = 50_000, 16, 32
TABLE_BYTES = 4 * ROWS * DIM
assert TABLE_BYTES > 4 * SMALLEST

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda k: k.optimizers.SGD(0.1),
    "momentum": lambda k: k.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda k: k.optimizers.Adagrad(0.1),
    "adam": lambda k: k.optimizers.Adam(0.01),
    "ftrl": lambda k: k.optimizers.Ftrl(0.1),
}
KERAS = {"keras": keras, "tf_keras": tf_keras}


def largest_of_a_step(optimizer: Any) -> int:
    """The bytes of the largest allocation of the third step of a loop, 0 if all are small."""
    tables = [tf.Variable(tf.ones([ROWS, DIM]) * (n + 1)) for n in range(2)]
    kernel = tf.Variable(tf.ones([2 * DIM, 1]))
    variables = [*tables, kernel]
    optimizer.build(variables)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int32)])
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = [tf.gather(table, ids[:, n]) for n, table in enumerate(tables)]
            loss = tf.reduce_mean(tf.square(tf.concat(rows, 1) @ kernel - 1.0))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    # What is changed by rows for the first time is copied, once.
    for _ in range(2):
        step(tf.constant(rng.integers(0, ROWS, (BATCH, 2)), tf.int32))
    with allocations() as sizes:
        step(tf.constant(rng.integers(0, ROWS, (BATCH, 2)), tf.int32))
    return max(sizes, default=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("module", KERAS)
def test_a_step_of_a_loop_allocates_next_to_nothing(module: str, name: str) -> None:
    with fusion.fused():
        assert largest_of_a_step(OPTIMIZERS[name](KERAS[module])) < TABLE_BYTES // 2
    report = fusion.stats().last_report
    assert report is not None
    assert all(update.fused for update in report.updates)


@pytest.mark.parametrize("name", ["momentum", "adagrad", "adam", "ftrl"])
def test_the_allocations_of_stock_are_seen(name: str) -> None:
    assert largest_of_a_step(OPTIMIZERS[name](keras)) >= TABLE_BYTES


def largest_of_fit(optimizer: Any) -> int:
    """As `largest_of_a_step`, of a step of `model.fit`."""
    inputs = [keras.layers.Input((1,), dtype="int32") for _ in range(2)]
    rows = [keras.layers.Flatten()(keras.layers.Embedding(ROWS, DIM)(ids)) for ids in inputs]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))
    model.compile(optimizer, "mse", jit_compile=False)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, ROWS, (BATCH, 1)).astype(np.int32) for _ in range(2)]
    labels = np.ones([BATCH, 1], np.float32)
    for _ in range(2):
        model.train_on_batch(ids, labels)
    with allocations() as sizes:
        model.train_on_batch(ids, labels)
    return max(sizes, default=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_a_model_allocates_next_to_nothing(name: str) -> None:
    with fusion.fused():
        assert largest_of_fit(OPTIMIZERS[name](keras)) < TABLE_BYTES // 2
