from pathlib import Path

import numpy as np

import benchmarks
from benchmarks.catalog import SMOKE
from benchmarks.lookups.batch import draw_batch, draw_tables, table_numbers, traffic
from benchmarks.lookups.catalog import HEADLINES, WORKLOADS
from benchmarks.lookups.draws import Bags, Draw
from benchmarks.lookups.workloads import RATIOS, Column, Program
from benchmarks.runner import load


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


def test_bounds_are_of_batches_that_are_measured():
    programs = [program for workload in WORKLOADS.values() for program in workload.programs]
    assert all({*program.least} <= {*program.batches} for program in programs)
    assert sum(len(ratios) for program in programs for ratios in program.least.values()) == 36


def test_headlines_measured_again_are_those_that_are_kept():
    """Without variants, and the README's first number among them."""
    kept = load(Path(benchmarks.__file__).parent / "results" / "headlines")
    assert {*SMOKE} <= {*HEADLINES} == {*kept}
    for name in HEADLINES:
        programs = WORKLOADS[name].of_headlines()
        assert all(program.variant_batch is None for program in programs)
        cases = {(program.name, size) for program in programs for size in program.batches}
        rows = [row.key for row in kept[name]["rows"] if row.table == RATIOS]
        assert {(key["program"], key["batch"]) for key in rows} == cases


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
    program = Program("p", columns, (8,)).scaled(0.1)
    assert [column.rows for column in program.columns] == [100, 16, 3]


def test_a_quick_run_has_few_columns_and_a_small_batch():
    columns = tuple(Column(rows, 4) for rows in range(1, 1001))
    program = Program("p", columns, (8, 64, 65536), 64).quick()
    assert len(program.columns) == 100
    assert (program.batches, program.variant_batch) == ((64,), None)


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
