import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import runner
from benchmarks.__main__ import main
from benchmarks.clients import __main__ as clients
from benchmarks.report import load, render
from benchmarks.training import measure, sides, trace
from benchmarks.training.cases import FRAMEWORKS, SLOTS, Case, select
from benchmarks.training.measure import Effort, compared, paired, timed
from benchmarks.training.sides import side
from benchmarks.training.tables import is_met, tables

SMALL = Case("keras", "sgd", 50, steps=3, columns=2, dim=4, batch=8, hidden=(8,), batches=4)


def small(framework, optimizer="sgd", **changed):
    return dataclasses.replace(SMALL, framework=framework, optimizer=optimizer, **changed)


def silent(line):
    pass


def test_what_is_measured_by_default_has_the_bounds_of_the_table():
    found = [*select()]
    assert len(found) == 3 * 3 + 3 + 3
    bounds = {(one.framework, one.optimizer, one.rows): one.least for one in found}
    assert bounds["keras", "adagrad", 1_000_000] == 30
    assert bounds["keras", "adagrad", 100_000] is None
    assert bounds["compat.v1", "adam", 100_000] == 1.3
    flat = {one.optimizer for one in found if one.reference_rows is not None}
    assert flat == {"sgd", "adagrad"}
    assert {one.steps for one in found if one.rows == 1_000_000} == {20}


def test_others_are_measured_on_request():
    found = [*select(optimizers=["lion"], rows=[500], distribution="power law")]
    assert [(one.framework, one.rows) for one in found] == [("keras", 500), ("tf_keras", 500)]
    assert {one.distribution for one in found} == {"power law"}
    with pytest.raises(ValueError, match=r"compat\.v1\.train has no optimizer lion"):
        [*select(["compat.v1"], ["lion"])]
    with pytest.raises(ValueError, match="optimizer must be one of sgd"):
        Case("keras", "sgdd", 10)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        Case("keras", "sgd", 0)


def test_tables_are_left_out_where_memory_is_short():
    case = Case("keras", "adam", 1_000_000, least=2.5)
    assert case.fitting(case.bytes_needed) == case
    half = case.fitting(case.bytes_needed // 2)
    assert (half.columns, half.least) == (13, None)
    assert case.fitting(1).columns == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_sides_of_a_framework_begin_and_go_on_alike(framework):
    case = small(framework, "adagrad")
    found = paired(side(case), side(case), case.steps, silent)
    assert found["compared"]["equal"]
    assert found["compared"]["steps"] == case.steps
    # Tables, kernels and biases, and a slot of each.
    assert found["compared"]["variables"] >= 2 * (2 + 2 * 2)
    assert found["failures"] == 0


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


@pytest.mark.parametrize("optimizer", SLOTS)
def test_every_optimizer_has_no_more_slots_than_is_known(optimizer):
    for framework in FRAMEWORKS:
        if (framework, optimizer) == ("compat.v1", "lion"):
            continue
        one = side(small(framework, optimizer))
        one.start()
        count = sum(value.shape == (50, 4) for _, value in one.variables())
        # tf_keras's SGD makes a slot for the momentum, also where there is none.
        unused = (framework, optimizer) == ("tf_keras", "sgd")
        assert count <= 2 * (1 + SLOTS[optimizer] + unused), framework


def test_sides_that_are_not_alike_are_found():
    stock, other = side(SMALL), side(small("keras", "adagrad"))
    other.variables = stock.variables  # type: ignore[method-assign]
    found = paired(stock, other, 3, silent)["compared"]
    assert found["first_step_apart"] == 2
    assert not found["equal"]
    assert found["losses_apart"] > 0


def test_two_stock_sides_are_compared_where_the_fused_one_is_not_equal(monkeypatch):
    made = []

    def build(case):
        made.append(case)
        # The second one is another model.
        return side(dataclasses.replace(case, optimizer="adagrad") if len(made) == 2 else case)

    monkeypatch.setattr(measure, "side", build)
    monkeypatch.setattr(sides.FitSide, "variables", lambda self: iter(()))
    found = measure.measure(SMALL, Effort(seconds=0.0, traces=False), silent)
    assert not found["compared"]["equal"]
    assert found["control"]["equal"]
    assert len(made) == 4
    text = "\n".join(tables({"training": [found]}))
    assert "two stock models are equal to each other: yes, 3 steps" in text


def test_a_bit_is_seen_and_what_is_apart_is_named():
    losses = {"stock": [1.0, 0.5], "fused": [1.0, 0.5]}
    one = np.array([1.0, -2.0], np.float32)
    same = compared(losses, [("a", one)], [("b", one.copy())])
    assert (same["equal"], same["close"], same["apart"]) == (True, True, [])
    near = compared(losses, [("a", one)], [("b", np.nextafter(one, np.float32(9)))])
    assert [found["name"] for found in near["apart"]] == ["a"]
    assert (near["equal"], near["close"]) == (False, True)
    zero = compared(losses, [("a", np.zeros(1))], [("b", -np.zeros(1))])
    assert not zero["equal"]
    assert zero["apart"] == [{"name": "a", "apart": 0.0}]
    far = compared(losses, [("a", one)], [("b", one * np.float32(1.1))])
    assert not far["close"]
    assert not compared(losses, [("a", one)], [("b", one * np.nan)])["close"]
    assert not compared({**losses, "fused": [1.0, np.nan]}, [], [])["close"]
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
    assert found["rounds"] >= 5
    assert {*found} == {"stock_ms", "fused_ms", "reference_ms", "rounds", "ratio", "growth"}
    assert found["ratio"] == sorted(found["ratio"])
    assert stock.steps > found["rounds"]


def test_a_case_is_measured_whole(monkeypatch):
    case = small("keras", reference_rows=20)
    found = measure.measure(case, Effort(seconds=0.0), silent)
    assert json.loads(json.dumps(found))["title"] == case.title
    assert found["columns"] == found["columns_asked"] == 2
    assert "control" not in found
    assert {*found["traces"]} == {"stock", "fused", "reference"}
    monkeypatch.setattr(measure, "_available", lambda: case.bytes_needed // 2)
    found = measure.measure(case, Effort(seconds=0.0, traces=False), silent)
    assert (found["columns"], found["columns_asked"]) == (1, 2)
    assert "there was memory for 1 of 2 tables" in "\n".join(tables({"training": [found]}))


def test_a_trace_has_kinds_of_ops_and_allocations():
    events = [
        ("model/dense/MatMul:_FusedMatMul", 2.0, {}),
        ("model/other/MatMul:_FusedMatMul", 4.0, {}),
        ("Add_2:AddV2", 8.0, {}),
        ("call:StatefulPartitionedCall", 100.0, {}),
        ("Iterator::Root::Prefetch", 100.0, {}),
        ("EagerLocalExecute: Add", 100.0, {}),
        ("MemoryAllocation", 0.0, {"requested_bytes": 640, "tf_op": "read", "shape": "[10,16]"}),
        ("MemoryAllocation", 0.0, {"requested_bytes": 320, "tf_op": "concat", "shape": "[5,16]"}),
    ]
    found = trace._summary(events, 640, steps=2)
    assert found.milliseconds == {"AddV2": 4.0, "_FusedMatMul": 3.0}
    assert found.calls == {"AddV2": 0.5, "_FusedMatMul": 1.0}
    assert found.largest == trace.Allocation(640, "read", "[10,16]")
    assert (found.allocated, found.of_table_size) == (480, 0.5)
    assert trace._summary([], 640, steps=2).largest is None


def test_ops_of_a_function_are_traced():
    value = tf.random.normal([256, 256])
    product = tf.function(lambda: tf.linalg.matmul(value, value))
    found = trace.trace(lambda steps: [product() for _ in range(steps)], 0, steps=3)
    assert any("MatMul" in op for op in found.milliseconds)


CANNED = {
    **dataclasses.asdict(Case("keras", "adagrad", 10_000, least=3.0, reference_rows=100)),
    "title": "keras adagrad",
    "columns_asked": 26,
    "stock_ms": 20.0,
    "fused_ms": 5.0,
    "ratio": [3.5, 4.0, 4.5],
    "growth": [1.0, 1.1, 1.2],
    "fused_columns": 26,
    "found_columns": 26,
    "fused_updates": 25,
    "found_updates": 26,
    "reasons": ["it is read"],
    "failures": 0,
    "busy_elsewhere": 0.0,
    "compared": compared({"stock": [1.0], "fused": [1.0]}, [], []),
    "traces": {
        name: {"milliseconds": {op: 1.5}, "calls": {op: 26.0}, "of_table_size": count}
        for name, op, count in (("stock", "IsNan", 52.0), ("fused", "MatMul", 0.0))
    },
}


def rendered(**changed):
    return "\n".join(tables({"training": [{**CANNED, **changed}]}, profile=True))


def test_a_case_is_one_row():
    row = "| keras adagrad | 20.00 | 5.00 | 4.00 (3.50 to 4.50) | 3 | yes, 1 steps | 26 of 26 |"
    assert f"{row} 25 of 26 | 52 | 0 |" in rendered()
    assert "stays stock: it is read" in rendered()
    assert "missed" not in rendered()
    assert "| IsNan | 1.500 | 26 |  |  |" in rendered()
    assert "other programs" in rendered(busy_elsewhere=0.5)
    assert is_met(CANNED)


APART = compared({"stock": [1.0], "fused": [1.5]}, [("w", np.ones(1))], [("w", np.zeros(1))])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ratio": [2.0, 2.5, 4.0]}, "| 3, **missed** |"),
        ({"growth": [1.0, 1.6, 1.7]}, "at most 1.5, **missed**"),
        ({"compared": APART}, "1 of 1 variables are not equal"),
        ({"compared": APART}, "losses are not equal from step 1 on"),
        (
            {"traces": dict.fromkeys(("stock", "fused"), CANNED["traces"]["stock"])},
            "| 52, **missed** |",
        ),
    ],
)
def test_what_is_missed_is_said(changed, told):
    assert told in rendered(**changed)
    assert not is_met({**CANNED, **changed})


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["benchmarks", "keras", *map(str, words)])
    return main()


def test_the_command_runs_cases_in_processes_of_their_own(tmp_path, monkeypatch, capsys):
    asked = []

    def worker(name, order, say):
        assert name == "keras"
        asked.append(order["case"])
        return CANNED

    monkeypatch.setattr(runner, "run_worker", worker)
    words = ("--framework", "keras", "--optimizer", "ftrl", "lion", "--columns", 3)
    assert run(monkeypatch, *words, "--distribution", "power-law", "--out", tmp_path) == 0
    assert [(one["optimizer"], one["rows"]) for one in asked] == [
        (optimizer, rows) for optimizer in ("ftrl", "lion") for rows in (10_000, 100_000, 1_000_000)
    ]
    assert {(one["columns"], one["distribution"]) for one in asked} == {(3, "power law")}
    results = load(tmp_path)
    assert len(results["keras"]["training"]) == 6
    assert "## keras" in render(results, [])
    assert "| keras adagrad |" in capsys.readouterr().out


def test_the_command_fails_with_what_it_measured(monkeypatch, capsys):
    assert run(monkeypatch, "--framework", "compat.v1", "--optimizer", "lion") == 2
    monkeypatch.setattr(runner, "run_worker", lambda *_: {**CANNED, "ratio": [1.0, 1.0, 1.0]})
    one = ("--framework", "tf_keras", "--optimizer", "sgd")
    assert run(monkeypatch, *one) == 1

    def fails(*_):
        raise runner.WorkerFailed("killed")

    monkeypatch.setattr(runner, "run_worker", fails)
    assert run(monkeypatch, *one) == 1
    assert "killed" in capsys.readouterr().err


def test_a_process_measures_a_case(tmp_path, monkeypatch):
    order = {"case": dataclasses.asdict(SMALL), "effort": {"seconds": 0.0}}
    path = tmp_path / "found.json"
    words = ["benchmarks", "worker", "keras", json.dumps(order), str(path)]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    assert json.loads(path.read_text())["compared"]["equal"]


def test_trainings_of_clients_have_a_table_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "version", lambda name: "1.0")
    one = {**CANNED, "model": "DeepFM-fit", "library": "deepctr", "optimizer": "adam"}
    (tmp_path / "DeepFM-fit.json").write_text(json.dumps(one))
    found = clients.table(tmp_path)
    assert "| DeepFM-fit | deepctr | adam | 26 of 26 | 25 of 26 | yes, 1 steps | 20.00 |" in found
    assert "- DeepFM-fit: it is read" in found
    assert "two stock models" not in found
    (tmp_path / "DeepFM-fit.json").write_text(json.dumps({**one, "control": APART}))
    found = clients.table(tmp_path)
    assert "DeepFM-fit: two stock models are equal to each other: **to 1e+00**" in found
