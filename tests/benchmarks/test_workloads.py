from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks.batch import draw_batch, draw_tables, table_numbers, traffic
from benchmarks.catalog import HEADLINES, SMOKE, WORKLOADS
from benchmarks.inputs import Bags, Draw
from benchmarks.report import load
from benchmarks.targets import TARGETS
from benchmarks.workloads import Column, Program, Workload


def test_the_workloads_are_as_described():
    columns = {
        (name, program.name): len(program.columns)
        for name, workload in WORKLOADS.items()
        for program in workload.programs
    }
    assert columns["criteo26", "dim16"] == columns["multihot26", "dim16"] == 26
    assert columns["recom-e", "model"] == columns["wide1000", "frozen"] == 1000
    assert columns["recflex-a", "columns1000"] == 10 * columns["recflex-a", "columns100"]
    (bag,) = (one for one in WORKLOADS["bag"].programs if one.name == "ids50-dim128")
    assert bag.columns[0].rows * 128 * 4 == 2**30


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_target_is_measured(target):
    (program,) = (one for one in WORKLOADS[target.workload].programs if one.name == target.program)
    assert target.batch in program.batches


def test_headlines_are_workloads_without_variants():
    assert set(HEADLINES) < set(WORKLOADS)
    for workload in HEADLINES.values():
        assert all(program.variant_batch is None for program in workload.programs)


def test_headlines_measured_again_are_those_that_are_kept():
    """The README's first number among them."""
    kept = load(Path(benchmarks.__file__).parent / "results" / "headlines")
    for name in SMOKE:
        cases = {
            (program.name, size) for program in HEADLINES[name].programs for size in program.batches
        }
        assert {(case["program"], case["batch"]) for case in kept[name]["cases"]} == cases


def test_other_ids_are_run_at_one_batch_size():
    program = Program("p", (Column(10, 4),), (8, 16), variant_batch=16)
    assert [name for name, _ in program.draws(8)] == ["base"]
    assert dict(program.draws(16)) == {
        "base": Draw(),
        "uniform": Draw("uniform"),
        "half-empty": Draw(empty=0.5),
        "negative": Draw(negative=0.02),
    }


def test_scaling_takes_rows_away_but_not_the_last_ones():
    columns = (Column(1000, 4), Column(20, 4), Column(3, 4))
    (program,) = Workload("w", "", (Program("p", columns, (8,)),)).scaled(0.1).programs
    assert [column.rows for column in program.columns] == [100, 16, 3]


def test_a_quick_run_has_few_columns_and_small_batches():
    columns = tuple(Column(rows, 4) for rows in range(1, 1001))
    workload = Workload("w", "", (Program("p", columns, (64, 65536), 64),)).quick()
    (program,) = workload.programs
    assert [column.rows for column in program.columns] == list(range(1, 1001, 10))
    assert program.batches == (64,)


def test_columns_share_tables_by_number():
    columns = tuple(Column(10, 4, table=table) for table in (3, None, 3, None))
    program = Program("p", columns, (8,))
    assert table_numbers(program) == [3, 4, 3, 5]
    assert sorted(draw_tables(program)) == [3, 4, 5]


def test_batches_and_tables_are_always_the_same():
    program = Program("p", (Column(10, 4, ids=(0, 3)), Column(10, 4, "bucketized")), (8,))
    one, other = (draw_batch(program, 8, Draw()) for _ in range(2))
    assert isinstance(one.columns[0], Bags)
    assert isinstance(other.columns[0], Bags)
    np.testing.assert_array_equal(one.columns[0].ids, other.columns[0].ids)
    np.testing.assert_array_equal(one.columns[1], other.columns[1])
    np.testing.assert_array_equal(draw_tables(program)[1], draw_tables(program)[1])
    assert not np.array_equal(draw_tables(program)[0], draw_tables(program)[1])


def test_the_least_traffic():
    program = Program("p", (Column(10, 4, ids=(2, 2)), Column(10, 8, "dense")), (8,))
    batch = draw_batch(program, 8, Draw())
    # Per id: 24 bytes with its place, or 8 in a dense tensor, and the row; per row of the output.
    assert traffic(program, batch) == 16 * (24 + 16) + 8 * (8 + 32) + 8 * 4 * 12
