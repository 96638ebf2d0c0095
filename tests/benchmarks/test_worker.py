import contextlib
import importlib.util

import numpy as np
import pytest

import fusion
from benchmarks import tensorflow_side, worker
from benchmarks.batch import draw_batch, draw_tables
from benchmarks.inputs import Draw
from benchmarks.results import combine
from benchmarks.workloads import Column, Program, Workload

EFFORT = worker.Effort(rounds=2, seconds=0.0, stream_megabytes=1)

PROGRAMS = {
    "lookups": Program(
        "lookups",
        (Column(50, 8, ids=(0, 4)), Column(40, 4, ids=(1, 1), combiner="sum")),
        (1, 6),
        variant_batch=6,
    ),
    "one-hot": Program("one-hot", (Column(50, 8),) * 2, (6,), variant_batch=6, frozen=True),
    "shared": Program("shared", (Column(50, 8, ids=(0, 4), table=0),) * 2, (6,)),
    "weighted": Program("weighted", (Column(50, 8, ids=(0, 4), weighted=True),), (6,)),
    "shards": Program("shards", (Column(50, 8, ids=(0, 4), shards=3, max_norm=1.0),), (6,)),
    "roofline": Program(
        "roofline", (Column(50, 8, ids=(3, 3), combiner="sum"),), (6,), roofline=True
    ),
    "model": Program(
        "model",
        (
            Column(5, 8, "bucketized"),
            Column(50, 4, "hashed"),
            Column(50, 4, "word"),
            Column(50, 8, "words", ids=(1, 3), combiner="sum"),
            Column(50, 8, "dense"),
            Column(50, 8, ids=(1, 3)),
        ),
        (6,),
        host="model",
    ),
}


def measured(name, effort=EFFORT):
    program = PROGRAMS[name]
    done: list[str] = []
    found = worker.measure(Workload(name, "", (program,)), effort, done.append)
    assert len(done) == len(found["cases"])
    return found["cases"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_workload_is_measured(name):
    program = PROGRAMS[name]
    cases = measured(name)
    assert [(case["batch"], case["variant"]) for case in cases] == [
        (batch, variant) for batch in program.batches for variant, _ in program.draws(batch)
    ]
    for case in cases:
        assert case["sides"]["fusion"]["columns_fused"] == len(program.columns)
        assert case["sides"]["stock"]["columns_fused"] == 0
        assert case["sides"]["fusion"]["nodes"] < case["sides"]["stock"]["nodes"]
        assert set(case["sides"]) | set(case["absent"]) >= set(worker.SIDES)
    assert ("row_sums" in cases[0]["sides"]) == program.roofline


def test_baselines_that_are_not_installed_are_named():
    (case,) = measured("weighted")
    if importlib.util.find_spec("torch") is None:
        assert case["absent"]["torch"] == "torch is not installed (extra bench)"
    else:
        assert {"torch", "fbgemm"} <= {*case["sides"], *case["absent"]}


def test_the_inputs_alone_are_made_and_nothing_else():
    program = PROGRAMS["lookups"]
    batch = draw_batch(program, 6, Draw())
    side = tensorflow_side.TensorFlowSide(program, draw_tables(program), batch, "stock")
    # Indices and values are split, shapes unpacked; the flag of the assertion is read too.
    assert tensorflow_side.first_run(side.inputs) == {
        "ReadVariableOp": 5,
        "SplitV": 2,
        "Unpack": 1,
        "Assert": 1,
    }


def test_a_gather_by_hand_is_no_baseline_where_rows_are_empty():
    cases = {case["variant"]: case for case in measured("one-hot")}
    assert "GatherV2" in cases["base"]["sides"]["stock_best"]["most_frequent_ops"]
    assert "exactly one valid id" in cases["half-empty"]["absent"]["stock_best"]


def test_another_result_than_stock_s_ends_the_run(monkeypatch):
    output = tensorflow_side.TensorFlowSide.output

    def other(side):
        found = output(side)
        return np.nextafter(found, 9, dtype=found.dtype) if side.columns_fused else found

    monkeypatch.setattr(tensorflow_side.TensorFlowSide, "output", other)
    with pytest.raises(RuntimeError, match="fusion differs from stock TensorFlow by up to"):
        measured("shared")


def test_a_fused_side_that_is_not_fused_ends_the_run(monkeypatch):
    monkeypatch.setattr(fusion, "fused", lambda **_: contextlib.nullcontext())
    with pytest.raises(RuntimeError, match="0 columns of fusion are fused"):
        measured("shared")


def test_a_measurement_goes_through_to_ratios():
    program = Workload("shared", "", (PROGRAMS["shared"],))
    found = combine([worker.measure(program, EFFORT, lambda line: None) for _ in range(2)])
    (case,) = found["cases"]
    assert case["ratios"]["stock"]["low"] > 0
    assert case["end_to_end_ratio"] is not None
