"""What replicas send: examples by hand, sums term by term, and simulated steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion.distribute import (
    Table,
    Traffic,
    expected_distinct_ids,
    plan,
    row_sharded_messages,
    row_sharded_traffic,
)
from tests.distribute.strategies import Limits, limit_lists, placing, replica_counts, table_lists


def probabilities(rows: int, alpha: float | None) -> np.ndarray:
    weights = np.arange(1.0, rows + 1) ** -(alpha or 0.0)
    return weights / weights.sum()


def test_distinct_ids_by_hand() -> None:
    assert expected_distinct_ids(2, 2) == pytest.approx(1.5)
    # Ids 1, 2 with probabilities 2/3, 1/3: both occur in two draws with 4/9.
    assert expected_distinct_ids(2, 2, alpha=1.0) == pytest.approx(1 + 4 / 9)
    assert expected_distinct_ids(1, 7) == 1.0
    assert expected_distinct_ids(1, 7, alpha=1.0) == 1.0
    for alpha in (None, 1.05):
        assert expected_distinct_ids(1000, 0, alpha) == 0.0
        assert expected_distinct_ids(1000, 1, alpha) == pytest.approx(1.0)
        assert expected_distinct_ids(10, 1e9, alpha) == pytest.approx(10.0)


def test_uniform_ids_of_very_many_rows_are_all_distinct() -> None:
    assert expected_distinct_ids(2**63 - 1, 1e6) == pytest.approx(1e6)


@pytest.mark.parametrize("rows", [3, 65_536, 65_537, 300_000, 2_000_000])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.05, 3.0, 400.0])
@pytest.mark.parametrize("ids", [0.3, 40, 5e4, 1e7])
def test_sums_are_those_of_all_terms(rows: int, alpha: float, ids: float) -> None:
    with np.errstate(divide="ignore"):
        terms = -np.expm1(ids * np.log1p(-probabilities(rows, alpha)))
    assert expected_distinct_ids(rows, ids, alpha) == pytest.approx(terms.sum(), rel=1e-9)


@given(st.integers(1, 10**9), st.floats(0, 1e9), st.none() | st.floats(0, 4))
def test_there_are_no_more_distinct_ids_than_ids_or_rows(
    rows: int, ids: float, alpha: float | None
) -> None:
    found = expected_distinct_ids(rows, ids, alpha)
    # A share of an id in a table of few rows counts as more than itself, by the formula.
    most = min(rows, max(ids, 1.0))
    assert 0 <= found <= most * (1 + 1e-9)
    assert found <= expected_distinct_ids(rows, ids) * (1 + 1e-9) or ids < 1


def test_row_sharded_traffic_by_hand() -> None:
    # Each of 4 replicas draws 2 ids of 2 rows, 1.5 distinct ones, of which 3 of 4 go to others.
    table = Table("t", 2, 5)
    sent = row_sharded_traffic(table, 4, 8)
    assert sent == pytest.approx((3 * 4, 1.125 * 4, 1.125 * 20, 1.125 * 20))
    assert sent.total == pytest.approx(12 + 1.125 * 44)
    half = row_sharded_traffic(Table("t", 2, 5, "float16", hotness=2), 4, 4)
    assert half == pytest.approx((3 * 4, 1.125 * 4, 1.125 * 10, 1.125 * 10))


@pytest.mark.parametrize(
    ("rows", "replicas", "item_bytes"),
    [(2**31 * 4 - 4, 4, 4), (2**31 * 4 - 3, 4, 8), (2**31 * 4 - 3, 5, 4)],
)
def test_ids_are_as_long_as_the_shard_needs(rows: int, replicas: int, item_bytes: int) -> None:
    sent = row_sharded_traffic(Table("t", rows, 1), replicas, replicas)
    assert sent.ids == pytest.approx((replicas - 1) / replicas * item_bytes)


@pytest.mark.parametrize("alpha", [None, 0.9, 1.2])
@pytest.mark.parametrize("replicas", [2, 8])
def test_a_simulated_step_sends_as_much(alpha: float | None, replicas: int) -> None:
    """All replicas together: what each keeps depends on where the frequent ids are."""
    rng = np.random.default_rng(0)
    table, batch_size, steps = Table("t", 3_000, 16, hotness=3), 4_096, 20
    p = probabilities(table.rows, alpha)
    count = batch_size * 3 // replicas
    sent = np.zeros(4)
    for _ in range(steps):
        for replica in range(replicas):
            ids = np.unique(rng.choice(table.rows, count, p=p))
            owners = ids % replicas
            to_others = np.count_nonzero(owners != replica)
            sent += np.array([(replicas - 1) * 4, *np.multiply(to_others, [4, 64, 64])])
    expected = row_sharded_traffic(table, replicas, batch_size, alpha)
    np.testing.assert_allclose(sent / replicas / steps, expected, rtol=0.02)


def test_messages_go_to_each_other_replica() -> None:
    assert [row_sharded_messages(replicas) for replicas in (1, 2, 4096)] == [0, 4, 16_380]


def test_traffic_of_a_whole_table() -> None:
    table = Table("t", 100, 5, combiner="sum", hotness=3)
    made = plan([table, Table("u", 1, 1)], 2, column_slice_threshold=10**6, batch_size=8)
    # Of its 4 samples a replica sends 12 ids, and of the other's 4 bags 5 elements each.
    assert made.traffic is not None
    of_u = 4 * 4.0
    assert made.traffic[0] == Traffic(0, of_u, 4 * 5 * 4, of_u)
    assert made.traffic[1] == Traffic(0, 12 * 4, of_u, 4 * 5 * 4)
    rows = plan([Table("t", 100, 5, hotness=3)], 2, "basic", 10**6, batch_size=8).traffic
    assert rows == (Traffic(0, 0, 12 * 5 * 4, 0), Traffic(0, 12 * 4, 0, 12 * 5 * 4))


def test_traffic_of_columns() -> None:
    table = Table("t", 100, 6, combiner="sum")
    made = plan([table], 3, batch_size=9)
    # To both others 3 ids and their bags' gradients of 2 columns, and of its own 6 bags.
    assert made.traffic == (Traffic(0, 2 * 3 * 4, 6 * 2 * 4, 2 * 3 * 2 * 4),) * 3


def test_traffic_of_replicated_tables() -> None:
    made = plan([(2, 5)], 4, data_parallel_threshold=10, batch_size=8)
    assert made.traffic is not None
    for sent in made.traffic:
        assert sent == pytest.approx((0, 3 * 1.5 * 4, 0, 3 * 1.5 * 20))


def test_traffic_of_tables_split_by_rows() -> None:
    table = Table("t", 2_000, 5)
    made = plan([table], 4, row_slice_threshold=1, batch_size=800, alpha=1.1)
    assert made.traffic is not None
    for sent in made.traffic:
        assert sent == pytest.approx(row_sharded_traffic(table, 4, 800, 1.1))


def test_without_a_batch_there_is_no_traffic() -> None:
    assert plan([(2, 5)], 4).traffic is None


@given(table_lists(), replica_counts, placing, limit_lists)
def test_one_replica_sends_nothing_and_several_send_finite_amounts(
    tables: list[Table], replicas: int, strategy: str, limits: Limits
) -> None:
    made = plan(tables, replicas, strategy, *limits, batch_size=64, alpha=1.0)
    assert made.traffic is not None
    assert len(made.traffic) == replicas
    totals = [sent.total for sent in made.traffic]
    assert all(map(math.isfinite, totals))
    assert all(total == 0 if replicas == 1 else total > 0 for total in totals)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1), ValueError, "rows must be at least 1, got 0"),
        ((1.5, 1), TypeError, "rows must be an integer, got 1.5"),
        ((1, -1), ValueError, "ids must be finite and at least 0, got -1"),
        ((1, "1"), TypeError, "ids must be a number, got '1'"),
        ((1, 1, -1), ValueError, "alpha must be finite and at least 0, got -1"),
    ],
)
def test_wrong_numbers_of_ids(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        expected_distinct_ids(*arguments)


def test_wrong_arguments_of_row_sharded_tables() -> None:
    with pytest.raises(TypeError, match=r"table must be a Table, got \(2, 2\)"):
        row_sharded_traffic((2, 2), 2, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="replicas must be at least 1, got 0"):
        row_sharded_traffic(Table("t", 2, 2), 0, 2)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        row_sharded_traffic(Table("t", 2, 2), 2, 0)
    with pytest.raises(ValueError, match="replicas must be at least 1, got 0"):
        row_sharded_messages(0)
