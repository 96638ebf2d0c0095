"""The row-sparse Adagrad for Keras 3: the numbers of Keras's own, without work on whole tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.optimizers.runs import BATCHES, FULL_BATCHES, KERNEL, TABLE, Batch

ADAGRADS = {"ours": fusion.optimizers.Adagrad, "keras": keras.optimizers.Adagrad}


def apply(optimizer: Any, batches: Sequence[Batch], compiled: bool = True) -> list[np.ndarray]:
    """The table, the kernel and the optimizer's variables after these batches."""
    table, kernel = keras.Variable(TABLE), keras.Variable(KERNEL)
    optimizer.build([table, kernel])

    def step(ids: Any, values: Any, of_kernel: Any) -> None:
        slices = tf.IndexedSlices(values, ids, tf.constant(TABLE.shape))
        optimizer.apply([slices, of_kernel], [table, kernel])

    run = tf.function(step, reduce_retracing=True, autograph=False) if compiled else step
    for batch in batches:
        run(*map(tf.constant, (batch.ids, batch.values, batch.kernel)))
    return [np.asarray(one) for one in (table, kernel, *optimizer.variables)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("batches", [BATCHES, FULL_BATCHES], ids=["some", "all"])
@pytest.mark.parametrize("options", [{}, {"epsilon": 1e-3, "initial_accumulator_value": 0.5}])
def test_the_numbers_are_those_of_keras(
    options: dict[str, float], batches: Sequence[Batch], compiled: bool
) -> None:
    ours, stock = (apply(make(0.1, **options), batches, compiled) for make in ADAGRADS.values())
    for mine, theirs in zip(ours, stock, strict=True):
        if compiled:  # TensorFlow's optimizer makes a product of ours out of the quotient
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(ours[0], TABLE)


@pytest.mark.parametrize("clipping", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_clipped_gradients_of_distinct_ids(clipping: str) -> None:
    ours, stock = (apply(make(0.1, **{clipping: 0.5}), FULL_BATCHES) for make in ADAGRADS.values())
    for mine, theirs in zip(ours, stock, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_checkpoints_go_both_ways(tmp_path: Any) -> None:
    for first, second in (("ours", "keras"), ("keras", "ours")):
        one, other = ADAGRADS[first](0.1), ADAGRADS[second](0.1)
        apply(one, BATCHES)
        path = tf.train.Checkpoint(optimizer=one).write(str(tmp_path / first))
        other.build([keras.Variable(TABLE), keras.Variable(KERNEL)])
        tf.train.Checkpoint(optimizer=other).read(path).assert_consumed()
        for mine, theirs in zip(one.variables, other.variables, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@pytest.mark.parametrize("name", ADAGRADS)
def test_keras_alone_computes_something_of_the_size_of_the_table(name: str) -> None:
    rows = 100_000
    table, optimizer = keras.Variable(np.ones((rows, 4), np.float32)), ADAGRADS[name](0.1)
    optimizer.build([table])

    def step(ids: tf.Tensor) -> None:
        optimizer.apply([tf.IndexedSlices(tf.ones([2, 4]), ids, tf.constant([rows, 4]))], [table])

    function = tf.function(step, autograph=False).get_concrete_function(tf.constant([1, 2]))
    shapes = [output.shape for op in function.graph.get_operations() for output in op.outputs]
    is_large = any(shape.rank == 2 and shape[0] == rows for shape in shapes)
    assert is_large == (name == "keras")


@pytest.mark.parametrize(
    "options",
    [{"weight_decay": 0.1}, {"use_ema": True}, {"gradient_accumulation_steps": 2}],
    ids=str,
)
def test_what_moves_all_rows_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"Adagrad does not support {name}"):
        fusion.optimizers.Adagrad(0.1, **options)


def test_a_constraint_is_refused() -> None:
    table = keras.Variable(TABLE)
    table.constraint = keras.constraints.NonNeg()
    optimizer = fusion.optimizers.Adagrad(0.1)
    optimizer.build([table])
    with pytest.raises(ValueError, match="constraint"):
        optimizer.apply([tf.IndexedSlices(tf.ones([1, 3]), [0], tf.constant(TABLE.shape))], [table])


def test_models_remember_the_class(tmp_path: Any) -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(fusion.optimizers.Adagrad(0.3, epsilon=1e-4), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is fusion.optimizers.Adagrad
    assert loaded.optimizer.epsilon == 1e-4
