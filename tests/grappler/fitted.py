"""Keras models of Embedding layers, trained by `fit`: what is left of a run, and what was fused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from fusion.passes.report.report import UpdateReport

ROWS, DIM, BATCH, TABLES = 40, 8, 24, 2

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda k, **options: k.optimizers.SGD(**{"learning_rate": 0.1} | options),
    "momentum": lambda k, **options: k.optimizers.SGD(
        **{"learning_rate": 0.1, "momentum": 0.9} | options
    ),
    "adagrad": lambda k, **options: k.optimizers.Adagrad(**{"learning_rate": 0.1} | options),
    "adam": lambda k, **options: k.optimizers.Adam(**{"learning_rate": 0.01} | options),
    "ftrl": lambda k, **options: k.optimizers.Ftrl(**{"learning_rate": 0.1} | options),
    "rmsprop": lambda k, **options: k.optimizers.RMSprop(**{"learning_rate": 0.01} | options),
}


@dataclass(frozen=True)
class Modifier:
    """What is done besides to a model and to its optimizer; each function is given the Keras.

    Attributes:
      optimizer: more arguments of the optimizer.
      embedding: more arguments of the layers.
      compiled: more arguments of `compile`.
      policy: of all layers.
      scales: whether the optimizer scales the loss.
    """

    optimizer: Callable[[Any], dict[str, Any]] = lambda k: {}
    embedding: Callable[[Any], dict[str, Any]] = lambda k: {}
    compiled: dict[str, Any] = field(default_factory=dict)
    policy: str = "float32"
    scales: bool = False


@dataclass(frozen=True)
class Fit:
    """A trained model.

    Attributes:
      model: itself.
      losses: of each step, or of each call of several.
      values: of all its variables and those of its optimizer.
      updates: what the pass says of the updates of tables.
    """

    model: Any
    losses: list[float]
    values: list[np.ndarray]
    updates: tuple[UpdateReport, ...]

    def assert_same(self, other: Fit) -> None:
        """All bits are equal, and training went on."""
        assert self.losses == other.losses
        assert np.isfinite(self.losses).all()
        assert len({*self.losses}) > len(self.losses) // 2
        for mine, theirs in zip(self.values, other.values, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def model(k: Any, optimizer: str, modifier: Modifier) -> Any:
    """A compiled model of two tables and a dense layer."""
    k.utils.set_random_seed(3)
    k.mixed_precision.set_global_policy(modifier.policy)
    try:
        inputs = [k.layers.Input((1,), dtype="int32") for _ in range(TABLES)]
        options = modifier.embedding(k)
        rows = [
            k.layers.Flatten()(k.layers.Embedding(ROWS, DIM, name=f"table_{n}", **options)(ids))
            for n, ids in enumerate(inputs)
        ]
        hidden = k.layers.Dense(16, activation="relu")(k.layers.Concatenate()(rows))
        built = k.Model(inputs, k.layers.Dense(1, dtype="float32")(hidden))
    finally:
        k.mixed_precision.set_global_policy("float32")
    made = OPTIMIZERS[optimizer](k, **modifier.optimizer(k))
    if modifier.scales:
        made = k.mixed_precision.LossScaleOptimizer(made)
    built.compile(made, "mse", **{"jit_compile": False} | modifier.compiled)
    return built


def dataset(steps: int, seed: int = 0) -> tf.data.Dataset:
    """Batches of ids, of which many occur several times."""
    rng = np.random.default_rng(seed)
    shape = (BATCH * steps, 1)
    ids = tuple(rng.integers(0, ROWS // 2, shape).astype(np.int32) for _ in range(TABLES))
    labels = rng.normal(size=shape).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH)


def fit(k: Any, built: Any, data: tf.data.Dataset) -> Fit:
    """Trains a model for an epoch."""
    losses: list[float] = []

    class Losses(k.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(float(logs["loss"]))

    before = fusion.stats().last_report
    built.fit(data, verbose=0, callbacks=[Losses()], shuffle=False)
    report = fusion.stats().last_report
    variables = [*built.weights, *_all(built.optimizer.variables)]
    values = [tf.convert_to_tensor(variable).numpy() for variable in variables]
    is_new = report is not None and report is not before
    return Fit(built, losses, values, report.updates if report is not None and is_new else ())


def _all(variables: Any) -> Iterable[Any]:
    """Those of an optimizer, which tf_keras has as a method of some."""
    return variables() if callable(variables) else variables


def fit_both(k: Any, optimizer: str, modifier: Modifier, steps: int) -> Fit:
    """Trains without fusion and with it, which makes no difference; returns the latter."""
    stock = fit(k, model(k, optimizer, modifier), dataset(steps))
    with fusion.fused():
        fused = fit(k, model(k, optimizer, modifier), dataset(steps))
    fused.assert_same(stock)
    return fused
