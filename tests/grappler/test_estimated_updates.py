"""Updates for which stock's kernels estimate or round in their own way: fused where bits agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.passes.analysis import stock_bits
from tests.grappler import updated_tables
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

v1 = tf.compat.v1


#: Those of tf_keras that take Rsqrt, and whether it is of rows of the batch alone.
WITH_RSQRT = {"adagrad": True, "rmsprop": True, "adadelta": False}


@pytest.mark.parametrize("name", WITH_RSQRT)
@pytest.mark.parametrize("dim", [DIM, DIM + 1])
def test_rsqrt_is_fused_where_tensors_are_whole_vectors(
    name: str, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dim == DIM:
        # As a TensorFlow that was compiled for other processors.
        monkeypatch.setattr(stock_bits, "_agrees", lambda op, dtype: False)
    else:
        monkeypatch.setattr(updated_tables, "DIM", dim)
    stock, _ = trained(optimizers(tf_keras)[name])
    with fusion.fused():
        fused, ran = trained(optimizers(tf_keras)[name])
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ran["Rsqrt"]
    if WITH_RSQRT[name]:
        # One before it, and one behind.
        assert ran[UPDATE] == 2 * TABLES
    else:
        assert "Rsqrt is not fused into an update" in {u.reason for u in last_report().updates}


@pytest.mark.parametrize("initial", [0.1, 0.0])
def test_adagrad_of_the_legacy_tf_keras(initial: float) -> None:
    """ResourceSparseApplyAdagradV2."""
    check(lambda: tf_keras.optimizers.legacy.Adagrad(0.1, initial_accumulator_value=initial))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "ftrl"])
def test_a_v1_session(name: str) -> None:
    """Adagrad's one op is taken in; those of momentum and Ftrl stay as they are."""
    make: Callable[[], Any] = {
        "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
        "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
        "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    }[name]
    rng = np.random.default_rng(0)
    start = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    ids = rng.integers(0, ROWS, BATCH)

    def train() -> tuple[list[np.ndarray], Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            table = v1.get_variable("table", initializer=start, use_resource=True)
            rows = tf.nn.embedding_lookup(table, v1.placeholder_with_default(ids, [None]))
            step = make().minimize(tf.reduce_sum(rows**2))
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run(step)
            with executed() as ran:
                session.run(step)
            return session.run(v1.global_variables()), ran

    stock, _ = train()
    with fusion.fused():
        fused, ran = train()
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    is_fused = name in ("sgd", "adagrad", "adam")
    assert ran[UPDATE] == int(is_fused)
    if is_fused:
        assert not ran["Unique"]
        assert not any("Apply" in op for op in ran)


@pytest.mark.parametrize(
    "op", [v1.raw_ops.ResourceSparseApplyAdagrad, v1.raw_ops.ResourceSparseApplyAdagradV2]
)
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("distinct", None),
        ("repeated", "ids may be repeated"),
        ("kept slots", "leaves its slots"),
        ("rounds", "rounds in another way here"),
        ("twice", "one variable is changed twice"),
    ],
)
def test_when_an_op_that_applies_a_gradient_is_taken_in(
    op: Any, what: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "rounds":
        monkeypatch.setattr(stock_bits, "_agrees", lambda op, dtype: False)
    rng = np.random.default_rng(0)
    start = rng.normal(size=(2, ROWS, DIM)).astype(np.float32)
    ids = tf.constant(rng.integers(0, ROWS // 3, BATCH))

    def train() -> tuple[list[np.ndarray], Any]:
        table, slot = tf.Variable(start[0]), tf.Variable(np.abs(start[1]))

        @tf.function(autograph=False)
        def step(ids: tf.Tensor) -> None:
            grad = tf.gather(table, ids) ** 2
            if what != "repeated":
                ids, index = tf.unique(ids)
                grad = tf.math.unsorted_segment_sum(grad, index, tf.size(ids))
            more = {"epsilon": 1e-7} if op.__name__.endswith("_v2") else {}
            accum = table if what == "twice" else slot
            op(
                var=table.handle,
                accum=accum.handle,
                lr=0.1,
                grad=grad,
                indices=ids,
                update_slots=what != "kept slots",
                **more,
            )

        for _ in range(2):
            step(ids)
        with executed() as ran:
            step(ids)
        return [table.numpy(), slot.numpy()], ran

    stock, _ = train()
    with fusion.fused():
        fused, ran = train()
    if what != "repeated":
        # Threads of the stock op add to the same row in any order.
        for mine, theirs in zip(fused, stock, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert ran[UPDATE] == (reason is None)
    (update,) = last_report().updates
    assert (update.reason or "").endswith(reason or "")
