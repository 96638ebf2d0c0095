"""Where tables go: examples by hand, and what holds for all plans."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fusion
from fusion.distribute import Joined, Plan, Slice, Table, plan
from tests.distribute.strategies import (
    Limits,
    limit_lists,
    placing,
    replica_counts,
    table_lists,
    thresholds,
)

SIZES = [(10, 4), (80, 4), (30, 4), (60, 4), (20, 4), (50, 4), (40, 4), (70, 4)]


def rows_on(made: Plan) -> list[list[int]]:
    """The sizes of whole tables on each replica."""
    found: list[list[int]] = [[] for _ in range(made.replicas)]
    for placement in made.placements:
        assert placement.kind == "whole"
        found[placement.replicas[0]].append(placement.table.rows)
    return found


def test_basic_goes_round() -> None:
    assert rows_on(plan(SIZES, 3)) == [[10, 60, 40], [80, 20, 70], [30, 50]]


def test_memory_balanced_goes_forth_and_back_by_size() -> None:
    assert rows_on(plan(SIZES, 2, "memory_balanced")) == [[10, 80, 50, 40], [30, 60, 20, 70]]


def test_memory_optimized_fills_the_smallest() -> None:
    sizes = [(100, 4), (10, 4), (10, 4), (50, 4), (30, 4)]
    assert rows_on(plan(sizes, 2, "memory_optimized")) == [[100], [10, 10, 50, 30]]
    assert rows_on(plan(sizes, 2, "memory_balanced")) == [[100, 10, 10], [50, 30]]


def test_no_strategy_is_worse_than_a_simpler_one() -> None:
    # The largest first gives 3 + 2 + 2 and 3 + 2.
    sizes = [(2, 4), (3, 4), (2, 4), (3, 4), (2, 4)]
    for strategy in ("memory_balanced", "memory_optimized"):
        assert rows_on(plan(sizes, 2, strategy)) == [[2, 2, 2], [3, 3]]


def test_thresholds_choose_the_kind() -> None:
    tables = [(10, 4), (11, 4), (99, 4), (100, 4), (1000, 8)]
    made = plan(tables, 2, row_slice_threshold=400, data_parallel_threshold=40)
    kinds = [placement.kind for placement in made.placements]
    assert kinds == ["replicated", "whole", "whole", "rows", "rows"]
    assert made.placements[0].slices == tuple(Slice(r, range(10), range(4)) for r in (0, 1))
    assert made.placements[3].slices == tuple(Slice(r, range(r, 100, 2), range(4)) for r in (0, 1))


def test_columns_are_halved_until_no_slice_is_above_the_threshold() -> None:
    made = plan([(100, 16)], 8, column_slice_threshold=400)
    (placement,) = made.placements
    assert placement.kind == "columns"
    assert [piece.columns for piece in placement.slices] == [
        range(start, start + 4) for start in (0, 4, 8, 12)
    ]
    (placement,) = plan([(100, 16)], 8, column_slice_threshold=399).placements
    assert len(placement.slices) == 8


def test_there_are_no_more_slices_than_replicas_or_columns() -> None:
    (placement,) = plan([(100, 7)], 3, column_slice_threshold=1).placements
    assert [len(piece.columns) for piece in placement.slices] == [3, 2, 2]
    (placement,) = plan([(100, 3)], 5, column_slice_threshold=1).placements
    assert placement.replicas == (0, 1, 2)


def test_with_fewer_tables_than_replicas_the_largest_are_split() -> None:
    made = plan([(10, 4), (100, 8)], 4)
    assert [placement.kind for placement in made.placements] == ["whole", "columns"]
    assert made.placements[0].replicas == (0,)
    # Of 800 elements, 2 slices give 3 in all, 4 give 5: the first two columns come to replica 0.
    assert [(piece.replica, piece.columns) for piece in made.placements[1].slices] == [
        (0, range(2)),
        (1, range(2, 4)),
        (2, range(4, 6)),
        (3, range(6, 8)),
    ]
    made = plan([(10, 4), (100, 8)], 4, column_slice_threshold=10**6)
    assert made.bytes == (160, 3200, 0, 0)


def test_slices_that_come_to_one_replica_are_one() -> None:
    made = plan([(100, 8), (1, 1)], 2, "memory_balanced", column_slice_threshold=400)
    assert made.placements[0].replicas == (0, 1)
    made = plan([(100, 8), (90, 8), (10, 1)], 3, "memory_balanced", column_slice_threshold=400)
    # Slices by size: 0, 0, 1, and back 1, 2: both of table 1 come to the last replica.
    assert [placement.kind for placement in made.placements] == ["columns", "whole", "whole"]
    assert made.placements[1].slices == (Slice(2, range(90), range(8)),)


def test_tables_of_one_width_dtype_and_combiner_are_joined() -> None:
    tables = [
        Table("a", 10, 8, combiner="sum"),
        Table("b", 20, 8, combiner="mean"),
        Table("c", 30, 8, combiner="sum"),
        Table("d", 40, 4, combiner="sum"),
        Table("e", 50, 8, "float16", "sum"),
        Table("f", 900, 8, combiner="sum"),
    ]
    assert plan(tables, 1).joined == (Joined(0, ("a", "c", "f"), 8, "float32", "sum"),)
    made = plan(tables, 2, column_slice_threshold=3600, data_parallel_threshold=80)
    # The halves of f have 4 columns, as d has.
    assert made.joined == (Joined(0, ("d", "f"), 4, "float32", "sum"),)


def test_bytes_have_slots() -> None:
    tables = [Table("a", 10, 4, "float16"), Table("b", 5, 4, "float64")]
    assert plan(tables, 2).bytes == (80, 160)
    assert plan(tables, 2, slots=2).bytes == (240, 480)


def test_one_replica_has_all() -> None:
    made = plan([(10, 4), (20, 4)], 1, "basic", 1, 80, 40)
    assert rows_on(made) == [[10, 20]]


def covered(placement: fusion.distribute.Placement) -> np.ndarray:
    """How often each element is there."""
    found = np.zeros([placement.table.rows, placement.table.dimension], int)
    for piece in placement.slices:
        found[np.ix_(piece.rows, piece.columns)] += 1
    return found


@given(table_lists(), replica_counts, placing, limit_lists)
def test_each_element_is_there_once_or_everywhere(
    tables: list[Table], replicas: int, strategy: str, limits: Limits
) -> None:
    made = plan(tables, replicas, strategy, *limits)
    assert [placement.table for placement in made.placements] == tables
    for placement in made.placements:
        times = replicas if placement.kind == "replicated" else 1
        assert (covered(placement) == times).all()
        assert [*placement.replicas] == sorted({*placement.replicas})
        assert {*placement.replicas} <= {*range(replicas)}
    copies = sum(
        placement.table.elements
        * placement.table.item_bytes
        * (replicas if placement.kind == "replicated" else 1)
        for placement in made.placements
    )
    assert sum(made.bytes) == copies
    assert made == plan(tables, replicas, strategy, *limits)
    json.dumps(made.to_dict())


@given(table_lists(), replica_counts, placing, thresholds, thresholds)
def test_no_replica_is_empty_where_there_are_enough_columns(
    tables: list[Table],
    replicas: int,
    strategy: str,
    min_split: int | None,
    max_replicated: int | None,
) -> None:
    made = plan(tables, replicas, strategy, None, min_split, max_replicated)
    placed = [p.table for p in made.placements if p.kind in ("whole", "columns")]
    if sum(min(table.dimension, replicas) for table in placed) >= replicas:
        assert min(made.bytes) > 0


@given(table_lists(), replica_counts, limit_lists)
def test_the_largest_replica_is_no_larger_by_the_better_strategies(
    tables: list[Table], replicas: int, limits: Limits
) -> None:
    basic, balanced, optimized = (
        max(plan(tables, replicas, strategy, *limits).bytes)
        for strategy in ("basic", "memory_balanced", "memory_optimized")
    )
    assert optimized <= balanced <= basic


@given(table_lists(), replica_counts, st.integers(1, 4000))
def test_slices_of_columns_are_within_the_threshold(
    tables: list[Table], replicas: int, threshold: int
) -> None:
    for placement in plan(tables, replicas, "basic", threshold).placements:
        count = len(placement.slices)
        if any(piece.elements > threshold for piece in placement.slices):
            assert count == min(replicas, placement.table.dimension)
        else:
            assert count & (count - 1) == 0 or count == min(replicas, placement.table.dimension)


@given(table_lists(), replica_counts, st.sampled_from(["basic", "memory_balanced"]))
def test_numbers_of_whole_tables_are_even(
    tables: list[Table], replicas: int, strategy: str
) -> None:
    counts = [len(rows) for rows in rows_on(plan(tables, replicas, strategy, 10**6))]
    assert max(counts) - min(counts) <= 1


def test_a_plan_prints_as_a_table() -> None:
    tables = [
        Table("users", 3_000_000, 64, combiner="mean", hotness=10),
        Table("cities", 500, 64, combiner="mean"),
        Table("items", 40_000, 64, combiner="mean"),
        Table("bad\n\x1bname", 9_000, 64, combiner="mean"),
        Table("tags", 2_000, 32),
    ]
    made = plan(
        *(tables, 2, "memory_optimized"),
        column_slice_threshold=2_000_000,
        row_slice_threshold=10_000_000,
        data_parallel_threshold=32_000,
        slots=1,
    )
    assert str(made) == (
        "5 tables on 2 replicas, memory_optimized, slots x 1\n"
        "\n"
        "table               rows  dimension  dtype    combiner       size  placed      on\n"
        "users          3,000,000         64  float32  mean        1.4 GiB  rows        0-1\n"
        "cities               500         64  float32  mean      250.0 KiB  replicated  0-1\n"
        "items             40,000         64  float32  mean       19.5 MiB  columns     "
        "0 (0-31), 1 (32-63)\n"
        "bad\\n\\x1bname      9,000         64  float32  mean        4.4 MiB  whole       0\n"
        "tags               2,000         32  float32            500.0 KiB  whole       1\n"
        "\n"
        "replica  tables       size\n"
        "      0       4  746.8 MiB\n"
        "      1       4  742.9 MiB\n"
        "\n"
        "the largest replica has 1.00 times the mean"
    )


def test_alike_replicas_in_a_row_are_one_line() -> None:
    lines = str(plan([(1000, 16)], 16, batch_size=16_000)).splitlines()
    assert lines[0] == "1 tables on 16 replicas, basic, batches of 16,000"
    assert [line.split()[0] for line in lines if line.startswith("0-15")] == ["0-15"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], 2), ValueError, "tables must have at least one table, got none"),
        ((5, 2), TypeError, r"tables must be a list of Table or of \(rows, dimension\), got 5"),
        ((["ab", (1, 2, 3)], 2), TypeError, "rows of table_0 must be an integer, got 'a'"),
        (([(1, 2), (1, 2, 3)], 2), TypeError, r"tables\[1\] must be a Table or a pair .*3\)"),
        (([(0, 2)], 2), ValueError, "rows of table_0 must be at least 1, got 0"),
        (([(2, -2)], 2), ValueError, "dimension of table_0 must be at least 1, got -2"),
        (([(2, 2)], 0), ValueError, "replicas must be at least 1, got 0"),
        (([(2, 2)], 2.0), TypeError, "replicas must be an integer, got 2.0"),
        (([(2, 2)], 2, "best"), ValueError, r"strategy must be one of \('basic', .*got 'best'"),
        (([(2, 2)], 2, ["basic"]), ValueError, "strategy must be one of"),
        (([(2, 2)], 2, "basic", 0), ValueError, "column_slice_threshold must be at least 1"),
        (([(2, 2)], 2, "basic", None, "4"), TypeError, "row_slice_threshold .*got '4'"),
        (([(2, 2)], 2, "basic", None, None, -1), ValueError, "data_parallel_threshold .*got -1"),
        (([Table("a", 2, 2), Table("a", 2, 2)], 2), ValueError, "different names, got 'a' twice"),
    ],
)
def test_wrong_arguments(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"slots": -1}, ValueError, "slots must be at least 0, got -1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"alpha": -0.5}, ValueError, "alpha must be finite and at least 0, got -0.5"),
        ({"alpha": "1"}, TypeError, "alpha must be a number, got '1'"),
        ({"alpha": float("nan")}, ValueError, "alpha must be finite"),
    ],
)
def test_wrong_options(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan([(2, 2)], 2, **options)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, 2, 2), TypeError, "name must be a string, got 3"),
        (("a", 2.5, 2), TypeError, "rows of a must be an integer, got 2.5"),
        (("a", 2**63, 2), ValueError, "rows of a must be at most"),
        (("a", 2, True), TypeError, "dimension of a must be an integer, got True"),
        (("a", 2, 2, "int32"), TypeError, "dtype of a must be one of .*got int32"),
        (("a", 2, 2, "float32", "median"), ValueError, "combiner of a must be None or one of"),
        (("a", 2, 2, "float32", None, 0), ValueError, "hotness of a must be finite and above 0"),
        (("a", 2, 2, "float32", None, "1"), TypeError, "hotness of a must be a number, got '1'"),
    ],
)
def test_wrong_tables(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Table(*arguments)


def test_sizes_from_numpy_are_plain() -> None:
    sizes: tuple[Any, ...] = (np.int64(10), np.int32(4), np.float16, None, np.float32(2))
    table = Table("a", *sizes)
    assert repr(table) == repr(Table("a", 10, 4, "float16", None, 2.0))


def test_it_is_public() -> None:
    assert fusion.distribute.plan is plan
    assert "distribute" in dir(fusion)
