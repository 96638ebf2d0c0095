import contextlib
import dataclasses
import importlib.util

import numpy as np
import pytest

import fusion
from benchmarks.case import combined
from benchmarks.lookups import measure, tensorflow_side
from benchmarks.lookups.batch import draw_batch, draw_tables
from benchmarks.lookups.draws import Draw
from benchmarks.lookups.workloads import RATIOS, TIMES, Column, Program

EFFORT = measure.Effort(rounds=2, seconds=0.0, stream_megabytes=1)

PROGRAMS = {
    "lookups": Program(
        "lookups",
        (Column(50, 8, ids=(0, 4)), Column(40, 4, ids=(1, 1), combiner="sum")),
        (1, 6),
        variant_batch=6,
    ),
    "one-hot": Program("one-hot", (Column(50, 8),) * 2, (6,), variant_batch=6, frozen=True),
    "shared": Program("shared", (Column(50, 8, ids=(0, 4), table=0),) * 2, (6,)),
    "weighted": Program(
        "weighted", (Column(50, 8, ids=(0, 4), weighted=True, shards=3, max_norm=1.0),), (6,)
    ),
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
    """The rows of times, and of ratios."""
    rows = [*measure.measured([PROGRAMS[name]], effort)]
    return [[row for row in rows if row.table == table] for table in (TIMES, RATIOS)]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "shared"])
def test_a_workload_is_measured(name):
    program = PROGRAMS[name]
    times, ratios = measured(name)
    for rows in (times, ratios):
        assert [(row.key["batch"], row.key["draw"]) for row in rows] == [
            (batch, variant) for batch in program.batches for variant, _ in program.draws(batch)
        ]
    for row in times:
        assert row.number("limit") > 0
        assert ("row_sums" in row.values) == program.roofline
    for row in ratios:
        before, after = map(int, row.values["nodes"].replace(",", "").split(" to "))
        assert after < before
        assert not any("columns are fused" in note for note in row.notes)
        missed = {note.split(":")[0].removeprefix("no ") for note in row.notes}
        over = {side.removeprefix("over ") for side in row.values}
        assert missed | over >= {*measure.SIDES} - {"fusion"}
        assert ("end to end" in row.values) == (row.key["draw"] == "base")


def test_baselines_that_are_not_installed_are_named():
    _, (row,) = measured("weighted")
    if importlib.util.find_spec("torch") is None:
        assert "no torch: torch is not installed (extra bench)" in row.notes
    else:
        assert {"over torch", "over fbgemm"} <= {*row.values}


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
    rows = {row.key["draw"]: row for row in measured("one-hot")[1]}
    assert "over stock_best" in rows["base"].values
    assert any("exactly one valid id" in note for note in rows["half-empty"].notes)


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
    effort = dataclasses.replace(EFFORT, end_to_end=False)
    rows = [row for one in (EFFORT, effort) for row in measured("shared", one)[1]]
    (found,) = combined(rows)
    assert isinstance(found.values["over stock"], dict)
    assert found.number("over stock") > 0
    assert found.number("end to end") > 0


class Side(tensorflow_side.TensorFlowSide):
    """Of 2 lookups."""

    def __init__(self, columns_fused):
        self.columns_fused = columns_fused


@pytest.mark.parametrize(
    ("fused", "net", "inputs", "told"),
    [
        (2, 1.0, 1.0, ""),
        (1, 1.0, 1.0, "1 of 2 columns are fused"),
        (2, 0.4, 1.0, "bug in the benchmark"),
        (2, 1.0, 11.0, "less than a tenth"),
    ],
)
def test_what_makes_numbers_doubtful_is_said(fused, net, inputs, told):
    times = measure.Times({"fusion": net}, {"fusion": inputs})
    found = [*measure._warnings(PROGRAMS["shared"], {"fusion": Side(fused)}, times, 0.5)]
    assert len(found) == bool(told)
    assert all(told in one for one in found)
