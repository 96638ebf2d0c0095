"""Training steps of which only the forward is understood: one op behind stock's own gathers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.grappler.executed import executed
from tests.grappler.training_steps import GRADIENT, STOCK, TRAINED

ROWS, DIM = 10, 4
POST = "FusedEmbeddingSparsePostLookUpV2"
IDS = tf.sparse.from_dense(tf.constant([[1, 2, 0], [0, 0, 0], [3, 2, 7]], tf.int64))


def run(make: Callable[[], Callable[[], Any]]) -> tuple[list[np.ndarray], Counter[str]]:
    """What the second call of a function gives, and the ops that ran in it."""
    function = make()
    function()
    with executed() as ran:
        found = function()
    return [
        np.asarray(tf.convert_to_tensor(one), np.float64) for one in tf.nest.flatten(found)
    ], ran


def both(
    make: Callable[[], Callable[[], Any]], rtol: float = 1e-6
) -> tuple[Counter[str], Counter[str], fusion.FusionReport]:
    """What ran without fusion and with it, after a look at the numbers, and the report."""
    stock, stock_ran = run(make)
    with fusion.fused():
        fused, fused_ran = run(make)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol)
    report = fusion.stats().last_report
    assert report is not None
    return stock_ran, fused_ran, report


def assert_forward(ran: Counter[str], report: fusion.FusionReport) -> None:
    """The fused op ran instead of the reduction, and nothing else fused."""
    assert [column.form for column in report.columns] == ["forward"], str(report)
    assert ran[POST] == 1
    assert sum(ran[op] for op in (*TRAINED, GRADIENT)) == 0
    assert sum(ran[op] for op in STOCK if op != "Unique") == 0
    assert ran["Unique"] == ran["ResourceGather"] == 1


def weighted_step(
    combiner: str, dtype: Any = tf.float32, trains_weights: bool = True
) -> Callable[[], Callable[[], Any]]:
    """Makes functions that return a lookup and its gradients."""
    rows = np.random.default_rng(1).standard_normal((ROWS, DIM))

    def make() -> Callable[[], Any]:
        table = tf.Variable(tf.cast(rows, dtype))
        weights = tf.Variable(tf.cast(np.linspace(0.5, 2, len(IDS.values)), dtype))

        @tf.function
        def step() -> Any:
            given = IDS.with_values(weights.read_value())
            with tf.GradientTape() as tape:
                tape.watch(given.values)
                result = tf.nn.safe_embedding_lookup_sparse(table, IDS, given, combiner=combiner)
                loss = tf.reduce_sum(tf.square(result))
            sources = [table, given.values] if trains_weights else [table]
            gradients = tape.gradient(loss, sources)
            return result, [tf.convert_to_tensor(one) for one in gradients]

        return step

    return make


def test_trained_weights():
    stock, fused, report = both(weighted_step("sum"))
    assert stock["SegmentSum"] == 1
    assert_forward(fused, report)
    assert "gradient_tape" in str(report.columns[0].reason)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_trained_weights_of_a_quotient_are_left_to_stock(combiner):
    # The gradient reads the sums.
    stock, fused, report = both(weighted_step(combiner), rtol=0)
    assert report.fused_count == 0
    assert "gradient" in str(report)
    assert fused["SegmentSum"] == stock["SegmentSum"] > 0
    assert fused[POST] == 0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_trained_weights_of_half_types(dtype):
    stock, fused, report = both(weighted_step("sum", dtype), rtol=2e-2)
    assert stock["SegmentSum"] == 1
    assert_forward(fused, report)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_weights_of_half_types(dtype):
    stock, fused, report = both(weighted_step("sum", dtype, trains_weights=False), rtol=2e-2)
    assert stock["SegmentSum"] == 1
    assert_forward(fused, report)
    # Of the rows of the entries the gradient needs the shape alone.
    assert fused["GatherV2"] < stock["GatherV2"]
    assert fused["Mul"] < stock["Mul"]


def test_a_gradient_of_the_programs_own():
    """It reads the distinct ids and where they are, and gets the gradient of the result."""
    rows = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)

    def make() -> Callable[[], Any]:
        table = tf.Variable(rows)

        @tf.function
        def step() -> Any:
            @tf.custom_gradient
            def look_up(read: tf.Tensor) -> Any:
                result = tf.nn.safe_embedding_lookup_sparse(table, IDS, combiner="mean")
                graph = tf.compat.v1.get_default_graph()
                unique = next(op for op in graph.get_operations() if op.type == "Unique")

                def gradient(top: tf.Tensor, variables: Any = None) -> Any:
                    counts = tf.math.bincount(unique.outputs[1], dtype=tf.float32)
                    total = tf.reduce_sum(top)
                    of_rows = tf.IndexedSlices(
                        total * counts[:, tf.newaxis] * tf.ones([1, DIM]), unique.outputs[0]
                    )
                    return tf.zeros_like(read), [of_rows]

                return result, gradient

            start = tf.zeros([])
            with tf.GradientTape() as tape:
                tape.watch(start)
                result = look_up(start)
                loss = tf.reduce_sum(tf.square(result))
            return result, tape.gradient(loss, table).values

        return step

    stock, fused, report = both(make)
    assert stock["SparseSegmentMean"] == 1
    assert_forward(fused, report)


def test_a_function_whose_gradient_is_taken_outside():
    """It returns what the gradient needs, which another function computes."""
    rows = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)

    def make() -> Callable[[], Any]:
        table = tf.Variable(rows)

        @tf.function
        def look_up() -> Any:
            return tf.nn.safe_embedding_lookup_sparse(table, IDS, combiner="mean")

        def step() -> Any:
            with tf.GradientTape() as tape:
                result = look_up()
            return result, tf.convert_to_tensor(tape.gradient(result, table))

        return step

    stock, fused, _ = both(make)
    assert stock["SparseSegmentMean"] == 1
    assert (fused[POST], fused["SparseSegmentMean"]) == (1, 0)
