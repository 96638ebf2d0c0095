import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.catalog import CASES
from benchmarks.training import measure, sides, trace
from benchmarks.training.measure import compared, paired, timed
from benchmarks.training.sides import OPTIMIZERS, Model, side

FRAMEWORKS = ("keras", "tf_keras", "compat.v1")
SMALL = Model("keras", "sgd", 50, columns=2, dim=4, batch=8, hidden=(8,), batches=4)


def small(framework, optimizer="sgd", **changed):
    return dataclasses.replace(SMALL, framework=framework, optimizer=optimizer, **changed)


def test_what_is_measured_by_default_has_the_bounds_of_the_table():
    parts = [part for name in FRAMEWORKS for part in CASES[name].parts(CASES[name].options)]
    assert len(parts) == 3 * 3 + 3 + 3
    found = {(one["framework"], one["optimizer"], one["rows"]) for one in parts}
    assert {*measure._LEAST} < found


def test_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"compat\.v1\.train has no optimizer lion"):
        Model("compat.v1", "lion", 10)
    with pytest.raises(ValueError, match="optimizer must be one of sgd"):
        Model("keras", "sgdd", 10)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        Model("keras", "sgd", 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_sides_of_a_framework_begin_and_go_on_alike(framework):
    model = small(framework, "adagrad")
    found = paired(side(model), side(model), 3)
    assert found.is_equal
    assert found.steps == 3
    # Tables, kernels and biases, and a slot of each.
    assert found.count >= 2 * (2 + 2 * 2)
    assert found.failures == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_steps_train(framework):
    one = side(small(framework, "adam", batches=1))
    losses = [*one.start(), *(one.step() for _ in range(20))]
    assert losses[-1] < losses[0]
    before = dict(one.variables())
    one.run(2)
    table = next(name for name, value in before.items() if value.shape == (50, 4))
    after = dict(one.variables())
    assert not np.array_equal(before[table], after[table])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_has_no_more_slots_than_is_known(optimizer):
    for framework in FRAMEWORKS:
        if (framework, optimizer) == ("compat.v1", "lion"):
            continue
        one = side(small(framework, optimizer))
        one.start()
        count = sum(value.shape == (50, 4) for _, value in one.variables())
        # tf_keras's SGD makes a slot for the momentum, also where there is none.
        unused = (framework, optimizer) == ("tf_keras", "sgd")
        assert count <= 2 * (1 + OPTIMIZERS[optimizer].slots + unused), framework


def test_sides_that_are_not_alike_are_found():
    stock, other = side(SMALL), side(small("keras", "adagrad"))
    other.variables = stock.variables  # type: ignore[method-assign]
    found = paired(stock, other, 3)
    assert found.first_step == 2
    assert not found.is_equal
    assert found.losses > 0
    assert "losses are not equal from step 2 on" in found.failure()


def test_two_stock_sides_are_compared_where_the_fused_one_is_not_equal(monkeypatch):
    made = []

    def build(model):
        made.append(model)
        # The second one is another model.
        return side(dataclasses.replace(model, optimizer="adagrad") if len(made) == 2 else model)

    monkeypatch.setattr(measure, "side", build)
    monkeypatch.setattr(sides.FitSide, "variables", lambda self: iter(()))
    (row,) = measure.measured(SMALL, 3, 0.0)
    assert row.failure
    assert "two stock models are equal to each other: yes, 3 steps" in row.notes
    assert len(made) == 4


def test_a_bit_is_seen_and_what_is_apart_is_named():
    losses = {"stock": [1.0, 0.5], "fused": [1.0, 0.5]}
    one = np.array([1.0, -2.0], np.float32)
    same = compared(losses, [("a", one)], [("b", one.copy())])
    assert (same.is_equal, same.failure(), same.variables) == (True, "", {})
    near = compared(losses, [("a", one)], [("b", np.nextafter(one, np.float32(9)))])
    assert [*near.variables] == ["a"]
    assert (near.is_equal, near.failure()) == (False, "")
    zero = compared(losses, [("a", np.zeros(1))], [("b", -np.zeros(1))])
    assert zero.variables == {"a": 0.0}
    for other in (one * np.float32(1.1), one * np.nan):
        far = compared(losses, [("a", one)], [("b", other)])
        assert "1 of 1 variables are not equal" in far.failure()
    assert compared({**losses, "fused": [1.0, np.nan]}, [], []).failure()
    with pytest.raises(ValueError, match="shorter"):
        compared(losses, [("a", one)], [])


class Counted(sides.Side):
    """Counts its steps."""

    steps = 0

    def start(self):
        return []

    def step(self):
        return 0.0

    def variables(self):
        return iter(())

    def run(self, steps):
        self.steps += steps


def test_steps_are_timed_in_turns():
    stock = Counted()
    found = timed({"stock": stock, "fused": Counted(), "reference": Counted()}, 0.0)
    assert [*found] == ["stock", "fused", "reference"]
    assert {len(times) for times in found.values()} == {5}
    assert stock.steps > 5


def test_a_model_is_measured_whole(monkeypatch):
    monkeypatch.setattr(measure, "_LARGE", 50)
    monkeypatch.setattr(measure, "COLUMNS", 2)
    monkeypatch.setitem(measure._LEAST, ("keras", "sgd", 50), 1.3)
    row, *ops = measure.measured(SMALL, 3, 0.0, profile=True)
    assert json.loads(json.dumps(row.to_dict()))["key"] == {
        "optimizer": "sgd", "rows": 50, "ids": "uniform"
    }  # fmt: skip
    assert not row.failure
    assert row.values["equal"] == "yes, 3 steps"
    bounds = {name for name, _, _ in row.verdicts()}
    assert bounds == {"over stock", "fused: table-sized allocations", "fused, over 10,000 rows"}
    assert any("MatMul" in str(one.key["op"]) for one in ops)


def test_tables_are_left_out_where_memory_is_short(monkeypatch):
    asked = []

    def measured(model, *effort):
        asked.append(model)
        return []

    monkeypatch.setattr(measure, "measured", measured)
    model = Model("keras", "adam", 1_000_000)
    for available in (model.bytes_needed, model.bytes_needed // 2, 1):
        monkeypatch.setattr(measure, "_available", lambda size=available: int(size / 0.85) + 1)
        case = CASES["keras"]
        chosen: dict[str, Any] = {"optimizer": "adam", "rows": 1_000_000}
        chosen |= {"distribution": "power-law"}
        (part,) = case.parts({**case.options, **chosen})
        assert [*case.rows(part)] == []
    assert [one.columns for one in asked] == [26, 13, 1]
    assert {one.distribution for one in asked} == {"power law"}


def test_a_trace_has_kinds_of_ops_and_allocations():
    events = [
        ("model/dense/MatMul:_FusedMatMul", 2.0, 0),
        ("model/other/MatMul:_FusedMatMul", 4.0, 0),
        ("Add_2:AddV2", 8.0, 0),
        ("call:StatefulPartitionedCall", 100.0, 0),
        ("Iterator::Root::Prefetch", 100.0, 0),
        ("EagerLocalExecute: Add", 100.0, 0),
        ("MemoryAllocation", 0.0, 640),
        ("MemoryAllocation", 0.0, 320),
    ]
    found = trace._summary(events, 640, steps=2)
    assert found.milliseconds == {"AddV2": 4.0, "_FusedMatMul": 3.0}
    assert found.calls == {"AddV2": 0.5, "_FusedMatMul": 1.0}
    assert found.of_table_size == 0.5


def test_ops_of_a_function_are_traced():
    value = tf.random.normal([256, 256])
    product = tf.function(lambda: tf.linalg.matmul(value, value))
    found = trace.trace(lambda steps: [product() for _ in range(steps)], 0, steps=3)
    assert any("MatMul" in op for op in found.milliseconds)
