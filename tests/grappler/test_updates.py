"""What stock optimizers do to tables, in one op for each table: the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from tests.grappler.executed import executed
from tests.grappler.updated_tables import (
    BATCH,
    DIM,
    ROWS,
    TABLES,
    UPDATE,
    check,
    last_report,
    optimizers,
    trained,
)


@pytest.mark.parametrize("name", optimizers(keras))
def test_keras_3(name: str) -> None:
    check(optimizers(keras)[name])


@pytest.mark.parametrize("name", optimizers(tf_keras))
def test_tf_keras(name: str) -> None:
    check(optimizers(tf_keras)[name])


@pytest.mark.parametrize("name", ["momentum", "adam", "adamax", "lion"])
def test_values_of_repeated_ids_are_summed_by_the_op(name: str) -> None:
    with fusion.fused():
        _, ran = trained(optimizers(tf_keras)[name])
    assert ran[UPDATE] == TABLES
    assert not ran["Unique"]
    assert not ran["UnsortedSegmentSum"]


@pytest.mark.parametrize("deduplicate", [False, True])
def test_negative_ids_of_an_embedding_of_keras_3(deduplicate: bool) -> None:
    ids = tf.constant([[1, -1, 3], [-ROWS, 1, ROWS - 1]])

    def train() -> tuple[list[np.ndarray], Any]:
        layer = keras.layers.Embedding(ROWS, DIM, embeddings_initializer="ones")
        layer.build()
        table = layer.trainable_variables[0].value
        slot = tf.Variable(tf.zeros_like(table))

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
        def step(ids: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids) ** 3)
            gradient = tape.gradient(loss, table)
            rows, values = gradient.indices, gradient.values
            if deduplicate:
                rows, index = tf.unique(rows)
                values = tf.math.unsorted_segment_sum(values, index, tf.size(rows))
            slot.scatter_add(tf.IndexedSlices(tf.square(values), rows))
            scale = tf.raw_ops.ResourceGather(resource=slot.handle, indices=rows, dtype=tf.float32)
            table.scatter_sub(tf.IndexedSlices(values * scale, rows))

        for _ in range(2):
            step(ids)
        with executed() as ran:
            step(ids)
        return [table.numpy(), slot.numpy()], ran

    stock, _ = train()
    with fusion.fused():
        fused, ran = train()
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ran[UPDATE] == 1
    assert not ran["Unique"]
    assert [u.reason for u in last_report().updates] == [None]


def reported(make: Callable[[], Any]) -> str:
    """What is said of a training."""
    with fusion.fused():
        trained(make)
    return str(last_report())


def test_what_the_report_says_of_optimizers_that_move_all_rows() -> None:
    text = reported(optimizers(keras)["adam"])
    size = 3 * TABLES * 4 * ROWS * DIM / 1e6
    assert f"  {TABLES} of {TABLES} updates of tables fused\n" in text
    assert f"every row moves in {TABLES} of them, {size:.1f} MB in each step\n" in text
    row = 3 * TABLES * 4 * DIM / 1e3
    assert f"fusion.optimizers.LazyAdam would move {row:.2g} kB for an id in each" in text
    assert "LazyMomentum" in reported(optimizers(keras)["momentum"])
    assert "LazyFtrl" in reported(optimizers(keras)["ftrl"])
    assert "every row" not in reported(optimizers(keras)["adagrad"])
    for other in ("rmsprop", "adadelta"):
        assert "Lazy" not in reported(optimizers(keras)[other])
        assert "Lazy" not in reported(optimizers(tf_keras)[other])
    lion = reported(optimizers(keras)["lion"])
    assert "every row" in lion
    assert "Lazy" not in lion


def test_nothing_that_other_threads_add_is_lost() -> None:
    """Each of them adds 1 to the same rows, which no number of threads does another way."""
    table = tf.Variable(tf.zeros([ROWS, DIM]))
    ids, ones = tf.range(ROWS), tf.ones([ROWS, DIM])

    @tf.function
    def step() -> None:
        table.scatter_add(tf.IndexedSlices(ones * tf.reduce_min(ones), ids))

    with fusion.fused():
        step()
        with executed() as ran:
            step()
    assert ran[UPDATE] == 1
    threads = [threading.Thread(target=lambda: [step() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(table.numpy(), 202)


def test_only_the_branch_that_is_taken_updates() -> None:
    def train_by(first: bool) -> tuple[list[np.ndarray], int]:
        tables = [tf.Variable(tf.ones([5, 3]) * (n + 1)) for n in range(3)]
        ids = tf.constant([1, 2])

        def update(table: tf.Variable) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids) ** 2)
            gradient = tape.gradient(loss, table)
            table.scatter_sub(tf.IndexedSlices(gradient.values * 0.1, gradient.indices))

        @tf.function
        def step(first: tf.Tensor) -> None:
            update(tables[2])
            if first:
                update(tables[0])
            else:
                update(tables[1])

        for _ in range(2):
            step(tf.constant(first))
        with executed() as ran:
            step(tf.constant(first))
        return [table.numpy() for table in tables], ran[UPDATE]

    for first in (True, False):
        stock, _ = train_by(first)
        with fusion.fused():
            fused, count = train_by(first)
        assert count > 0
        np.testing.assert_array_equal(fused, stock)
        moved = [bool(np.any(table != n + 1)) for n, table in enumerate(fused)]
        assert moved == [first, not first, True]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_factors_that_tensorflow_moves_in_its_second_round(module: Any, name: str) -> None:
    """A number times the gradient of a table goes into the optimizer's products."""
    ids = tf.constant(np.random.default_rng(0).integers(0, ROWS, BATCH))

    def train() -> list[np.ndarray]:
        table = tf.Variable(tf.random.stateless_normal([ROWS, DIM], [1, 2]))
        optimizer = optimizers(module)[name]()
        optimizer.build([table])

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids) ** 3)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            return loss

        for _ in range(3):
            step()
        return [table.numpy()]

    stock = train()
    with fusion.fused():
        fused = train()
    assert [update.reason for update in last_report().updates] == [None]
    np.testing.assert_array_equal(fused, stock)


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_global_clipnorm(module: Any, name: str) -> None:
    """Keras 3 sums such gradients up to dense ones; whatever is fused has stock's bits."""

    def make() -> Any:
        return getattr(module.optimizers, name)(0.1, global_clipnorm=0.01)

    stock, _ = trained(make)
    with fusion.fused():
        fused, _ = trained(make)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
