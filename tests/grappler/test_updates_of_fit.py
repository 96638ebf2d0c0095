"""`model.fit` with stock layers and optimizers: all variables have stock's bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras

import fusion
from tests.grappler.fitted import (
    OPTIMIZERS,
    TABLES,
    Fit,
    Modifier,
    dataset,
    fit,
    fit_both,
    model,
)

KERAS = {"keras": keras, "tf_keras": tf_keras}
PLAIN = Modifier()

IN_BRANCH = "the update is partly inside a branch"
IN_LOOP = "an update inside of a loop stays as it is"


def check_steps(k: Any, optimizer: str, steps: int) -> None:
    """Also of the soak tests."""
    fused = fit_both(k, optimizer, PLAIN, steps)
    assert len(fused.losses) == steps
    assert [update.reason for update in fused.updates] == [None] * TABLES


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("module", KERAS)
def test_ten_steps(module: str, optimizer: str) -> None:
    """Two hundred in tests/soak/long_grappler.py."""
    check_steps(KERAS[module], optimizer, 10)


#: Those that move the rows of a batch, of these the weights alone, or all rows.
KINDS = ("sgd", "adagrad", "adam")

MODIFIERS: dict[str, Modifier] = {
    "weight_decay": Modifier(lambda k: {"weight_decay": 0.01}),
    "clipvalue": Modifier(lambda k: {"clipvalue": 0.001}),
    "clipnorm": Modifier(lambda k: {"clipnorm": 0.01}),
    "use_ema": Modifier(lambda k: {"use_ema": True}),
    "LossScaleOptimizer": Modifier(scales=True),
    "mixed_float16": Modifier(policy="mixed_float16"),
    "mixed_bfloat16": Modifier(policy="mixed_bfloat16"),
}


@pytest.mark.parametrize("optimizer", KINDS)
@pytest.mark.parametrize("name", MODIFIERS)
def test_a_modifier_with_which_updates_are_fused(name: str, optimizer: str) -> None:
    fused = fit_both(keras, optimizer, MODIFIERS[name], 6)
    assert [update.reason for update in fused.updates] == [None] * TABLES


#: The arithmetic of a schedule is the same for all optimizers: each has one of them.
SCHEDULES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "exponential": ("sgd", lambda s: s.ExponentialDecay(0.01, 2, 0.5)),
    "cosine": ("adam", lambda s: s.CosineDecay(0.001, 5, warmup_target=0.01, warmup_steps=3)),
    "piecewise": ("adagrad", lambda s: s.PiecewiseConstantDecay([2, 5], [0.01, 0.005, 0.001])),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_with_which_updates_are_fused(name: str) -> None:
    optimizer, make = SCHEDULES[name]
    modifier = Modifier(lambda k: {"learning_rate": make(k.optimizers.schedules)})
    fused = fit_both(keras, optimizer, modifier, 6)
    assert [update.reason for update in fused.updates] == [None] * TABLES


#: What is found in the graph of any optimizer, of which each has one.
LEFT: dict[str, tuple[str, Modifier, str]] = {
    "ema_overwrite_frequency": (
        "sgd",
        Modifier(lambda k: {"use_ema": True, "ema_overwrite_frequency": 3}),
        IN_BRANCH,
    ),
    "gradient_accumulation_steps": (
        "adagrad",
        Modifier(lambda k: {"gradient_accumulation_steps": 3}),
        IN_BRANCH,
    ),
    "steps_per_execution": ("adam", Modifier(compiled={"steps_per_execution": 3}), IN_LOOP),
    "regularizer": (
        "adam",
        Modifier(embedding=lambda k: {"embeddings_regularizer": k.regularizers.L2(0.01)}),
        "a constant matrix takes part in the update",
    ),
    "constraint": (
        "adagrad",
        Modifier(embedding=lambda k: {"embeddings_constraint": k.constraints.MaxNorm(0.1)}),
        "Sum is not fused into an update",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_modifier_with_which_updates_stay(name: str) -> None:
    """The report says why."""
    optimizer, modifier, reason = LEFT[name]
    fused = fit_both(keras, optimizer, modifier, 6)
    assert reason in {update.reason for update in fused.updates}


Save = Callable[[Any, Path], Any]


def checkpoint(built: Any) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=built, optimizer=built.optimizer)


def restored(how: str, trained: Any, folder: Path) -> Any:
    """Another model with the state of this one, through files."""
    if how == "keras":
        trained.save(folder / "model.keras")
        return keras.models.load_model(folder / "model.keras")
    other = model(keras, "adam", PLAIN)
    other.optimizer.build(other.trainable_variables)
    if how == "checkpoint":
        path = checkpoint(trained).write(str(folder / "state"))
        checkpoint(other).read(path).assert_existing_objects_matched()
        return other
    trained.save_weights(folder / "state.weights.h5")
    other.load_weights(folder / "state.weights.h5")
    return other


@pytest.mark.parametrize("how", ["checkpoint", "keras", "weights"])
def test_files_go_both_ways(how: str, tmp_path: Path) -> None:
    def run(fused: bool, work: Callable[[], Fit]) -> Fit:
        if not fused:
            return work()
        with fusion.fused():
            result = work()
        assert [update.reason for update in result.updates] == [None] * TABLES
        return result

    def trained_twice(first: bool, second: bool, folder: Path) -> Fit:
        folder.mkdir()
        begun = run(first, lambda: fit(keras, model(keras, "adam", PLAIN), dataset(4)))
        other = restored(how, begun.model, folder)
        return run(second, lambda: fit(keras, other, dataset(4, seed=1)))

    stock = trained_twice(False, False, tmp_path / "stock")
    trained_twice(True, False, tmp_path / "fused_first").assert_same(stock)
    trained_twice(False, True, tmp_path / "stock_first").assert_same(stock)
