"""`model.fit` with stock layers and optimizers: all variables have stock's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    "l2": Modifier(embedding=lambda k: {"embeddings_regularizer": k.regularizers.L2(0.01)}),
    "l1": Modifier(embedding=lambda k: {"embeddings_regularizer": k.regularizers.L1(0.01)}),
    "l1 and l2": Modifier(
        embedding=lambda k: {"embeddings_regularizer": k.regularizers.L1L2(0.1, 0.2)}
    ),
    "global_clipnorm": Modifier(lambda k: {"global_clipnorm": 0.01}),
    "ema_overwrite_frequency": Modifier(
        lambda k: {"use_ema": True, "ema_overwrite_frequency": 3},
    ),
    "gradient_accumulation_steps": Modifier(lambda k: {"gradient_accumulation_steps": 3}),
    "steps_per_execution": Modifier(compiled={"steps_per_execution": 3}),
    "constraint": Modifier(
        embedding=lambda k: {"embeddings_constraint": k.constraints.MaxNorm(0.1)}
    ),
}

THREE_TERMS = "a sum of more than two terms is not fused into an update"
#: Why updates stay, of all optimizers or of one, by Keras and modifier; all others are fused.
LEFT: dict[str, dict[str, str | dict[str, str]]] = {
    "keras": {
        "ema_overwrite_frequency": IN_BRANCH,
        "gradient_accumulation_steps": IN_BRANCH,
        "steps_per_execution": IN_LOOP,
        "l1 and l2": THREE_TERMS,
        "constraint": "Sum is not fused into an update",
    },
    "tf_keras": {
        "use_ema": {"rmsprop": IN_BRANCH},
        "ema_overwrite_frequency": IN_BRANCH,
        "steps_per_execution": IN_LOOP,
        "l1 and l2": THREE_TERMS,
        "constraint": "Sum is not fused into an update",
    },
}


def check_modifier(module: str, name: str, optimizer: str) -> None:
    """Training has stock's bits, and updates are fused or stay for the expected reason."""
    fused = fit_both(KERAS[module], optimizer, MODIFIERS[name], 6)
    reason = LEFT[module].get(name)
    if isinstance(reason, dict):
        reason = reason.get(optimizer)
    reasons = [update.reason for update in fused.updates]
    if reason is None:
        assert reasons == [None] * TABLES
    else:
        assert reason in reasons
        assert None not in reasons


def modified() -> Iterator[tuple[str, str, str]]:
    """Each modifier with all optimizers; where updates stay, for all alike, with one of them."""
    for module, left in LEFT.items():
        for number, name in enumerate(MODIFIERS):
            is_alike = isinstance(left.get(name), str)
            for optimizer in KINDS[number % 3 :][:1] if is_alike else KINDS:
                yield module, name, optimizer


@pytest.mark.parametrize(("module", "name", "optimizer"), [*modified()])
def test_a_modifier(module: str, name: str, optimizer: str) -> None:
    """The rows of the table in docs/training.md."""
    if (module, name) == ("tf_keras", "gradient_accumulation_steps"):
        with pytest.raises(TypeError, match="gradient_accumulation_steps is not a valid argument"):
            model(tf_keras, optimizer, MODIFIERS[name])
        return
    check_modifier(module, name, optimizer)


@pytest.mark.parametrize("name", ["use_ema", "l2", "clipnorm", "global_clipnorm"])
def test_a_modifier_of_rmsprop_in_tf_keras(name: str) -> None:
    check_modifier("tf_keras", name, "rmsprop")


@pytest.mark.parametrize("module", KERAS)
def test_a_model_that_xla_compiles_is_not_seen(module: str) -> None:
    fused = fit_both(KERAS[module], "adam", Modifier(compiled={"jit_compile": True}), 3)
    assert fused.updates == ()


#: The arithmetic of a schedule is the same for all optimizers: each has one of them.
SCHEDULES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "exponential": ("sgd", lambda s: s.ExponentialDecay(0.01, 2, 0.5)),
    "cosine": ("adam", lambda s: s.CosineDecay(0.001, 5, warmup_target=0.01, warmup_steps=3)),
    "piecewise": ("adagrad", lambda s: s.PiecewiseConstantDecay([2, 5], [0.01, 0.005, 0.001])),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("module", KERAS)
def test_a_schedule(module: str, name: str) -> None:
    optimizer, make = SCHEDULES[name]
    modifier = Modifier(lambda k: {"learning_rate": make(k.optimizers.schedules)})
    fused = fit_both(KERAS[module], optimizer, modifier, 6)
    assert [update.reason for update in fused.updates] == [None] * TABLES


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
