"""Tables that stock optimizers update, without fusion and with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from fusion.passes.report.report import FusionReport
from tests.grappler.executed import executed

UPDATE = "FusedEmbeddingUpdate"
WRITES = ("ResourceScatterAdd", "ResourceScatterSub")
ROWS, DIM, TABLES, BATCH = 40, 8, 3, 24


def optimizers(module: Any) -> dict[str, Callable[[], Any]]:
    """Those of either Keras."""
    k = module.optimizers
    return {
        "sgd": lambda: k.SGD(0.1),
        "momentum": lambda: k.SGD(0.1, momentum=0.9),
        "nesterov": lambda: k.SGD(0.1, momentum=0.9, nesterov=True),
        "adagrad": lambda: k.Adagrad(0.1),
        "adam": lambda: k.Adam(0.01),
        "adamw": lambda: k.AdamW(0.01),
        "amsgrad": lambda: k.Adam(0.01, amsgrad=True),
        "rmsprop": lambda: k.RMSprop(0.01),
        "adadelta": lambda: k.Adadelta(0.1),
        "adamax": lambda: k.Adamax(0.01),
        "nadam": lambda: k.Nadam(0.01),
        "ftrl": lambda: k.Ftrl(0.1),
        "lion": lambda: k.Lion(0.01),
        "schedule": lambda: k.Adam(k.schedules.ExponentialDecay(0.01, 2, 0.5)),
        "clipvalue": lambda: k.Adagrad(0.1, clipvalue=0.01),
        "clipnorm": lambda: k.SGD(0.1, clipnorm=0.01),
    }


def trained(make: Callable[[], Any], steps: int = 4) -> tuple[list[np.ndarray], Any]:
    """The variables after some steps, the optimizer's too, and what ran in the last one."""
    rng = np.random.default_rng(0)
    tables = [tf.Variable(rng.normal(size=(ROWS, DIM)).astype(np.float32)) for _ in range(TABLES)]
    kernel = tf.Variable(rng.normal(size=(DIM * TABLES, 1)).astype(np.float32))
    optimizer = make()
    if hasattr(optimizer, "build"):
        optimizer.build([*tables, kernel])

    @tf.function(input_signature=[tf.TensorSpec([None, TABLES], tf.int32)])
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = [tf.gather(table, ids[:, n]) for n, table in enumerate(tables)]
            loss = tf.reduce_mean(tf.square(tf.concat(rows, 1) @ kernel - 1.0))
        gradients = tape.gradient(loss, [*tables, kernel])
        optimizer.apply_gradients(zip(gradients, [*tables, kernel], strict=True))
        return loss

    batches = [tf.constant(rng.integers(0, ROWS // 2, (BATCH, TABLES)), tf.int32)] * steps
    for batch in batches[1:]:
        step(batch)
    with executed() as ran:
        step(batches[0])
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    values = [tf.convert_to_tensor(v).numpy() for v in (*tables, *variables)]
    return values, ran


def last_report() -> FusionReport:
    report = fusion.stats().last_report
    assert report is not None
    return report


def check(make: Callable[[], Any], ops: int = TABLES) -> FusionReport:
    """Trains without fusion and with it."""
    stock, _ = trained(make)
    with fusion.fused():
        fused, ran = trained(make)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    report = last_report()
    assert [update.reason for update in report.updates] == [None] * TABLES
    assert ran[UPDATE] == ops
    assert sum(ran[op] for op in WRITES) == 0
    return report
