from __future__ import annotations

import math

import numpy as np
import pytest

from fusion.saved_model.inputs.constraints import (
    Bounds,
    Constraints,
    Extent,
    Key,
    Role,
    divided_rows,
)

VALUES, SPLITS, OTHER = Key("values"), Key("splits"), Key("other")


def _divided(role: Role) -> Constraints:
    found = Constraints()
    found.divides(SPLITS, role)
    found.link({Extent(SPLITS, is_inside=True), Extent(VALUES)})
    found.demand(SPLITS, role, VALUES)
    return found


def test_links_reach_as_far_as_they_go_and_no_further():
    found = Constraints()
    one, two, three, four = (Extent(Key(name)) for name in "abcd")
    found.link([one, two])
    found.link([three, two])
    found.link([four])
    found.link([])
    assert found.linked(one) == {one, two, three}
    assert found.linked(four) == {four}


def test_the_first_role_stays_and_divides_only_what_is_linked():
    found = _divided(Role.SPLITS)
    found.divides(SPLITS, Role.LENGTHS)
    found.divides(OTHER, Role.ROW_IDS)
    assert found.divider(SPLITS) is Role.SPLITS
    # Differences of neighbours alone make nothing row splits: these may be times.
    assert found.divider(OTHER) is None
    assert found.divider(VALUES) is None


@pytest.mark.parametrize(
    ("role", "rows"),
    [(Role.SPLITS, [0, 2, 2, 5]), (Role.LENGTHS, [2, 0, 3]), (Role.ROW_IDS, [0, 0, 2, 2, 2])],
)
def test_divided_rows_divide(role: Role, rows: list[int]):
    made = divided_rows(role, np.array([2, 0, 3]))
    assert made.tolist() == rows
    if role is not Role.LENGTHS:
        feeds = {"values": np.zeros(5), "splits": made}
        assert _divided(role).violation(feeds, ()) is None


@pytest.mark.parametrize(
    ("role", "rows", "why"),
    [
        (Role.SPLITS, [], "do not begin with 0"),
        (Role.SPLITS, [1, 5], "do not begin with 0"),
        (Role.SPLITS, [0, 3, 2, 5], "decrease"),
        (Role.SPLITS, [0, 4], "end with 4, for 5 values"),
        (Role.ROW_IDS, [0, 1, 0, 1, 1], "decrease"),
        (Role.ROW_IDS, [-1, 0, 0, 1, 1], "negative"),
        (Role.ROW_IDS, [0, 1], "there are 2, for 5 values"),
    ],
)
def test_what_does_not_divide_is_told(role: Role, rows: list[int], why: str):
    feeds = {"values": np.zeros(5), "splits": np.array(rows, np.int64)}
    violation = _divided(role).violation(feeds, ())
    assert violation is not None
    assert violation.startswith(f"'splits' holds no {role.value} of 'values': ")
    assert why in violation


def test_nested_row_splits_are_as_many_as_rows_and_one():
    found = Constraints()
    inner = Key("inner")
    for key, entries in ((SPLITS, inner), (inner, VALUES)):
        found.divides(key, Role.SPLITS)
        found.link({Extent(key, is_inside=True), Extent(entries)})
        found.demand(key, Role.SPLITS, entries)
    feeds = {
        "splits": np.array([0, 1, 3]),
        "inner": np.array([0, 2, 2, 4]),
        "values": np.zeros(4),
    }
    assert found.violation(feeds, ()) is None
    feeds["splits"] = np.array([0, 1, 2])
    assert "'splits' holds no row splits of 'inner'" in (found.violation(feeds, ()) or "")


def test_what_is_not_demanded_may_divide_in_other_ways():
    found = Constraints()
    found.divides(SPLITS, Role.SPLITS)
    found.link({Extent(SPLITS, is_inside=True), Extent(VALUES)})
    assert found.violation({"values": np.zeros(5), "splits": np.array([2, 5])}, ()) is None


@pytest.mark.parametrize(
    ("indices", "shape", "why"),
    [
        ([[0, 0], [2, 1]], [3, 2], None),
        ([[0, 0]], [3, 2], "1, 2. indices, 2 values"),
        ([[0, 0], [3, 1]], [3, 2], "outside the shape"),
        ([[0, 0], [-1, 1]], [3, 2], "outside the shape"),
        ([[0, 0], [1, 1]], [3], "rank 1"),
    ],
)
def test_sparse_tensors_have_their_parts_checked(indices: list, shape: list, why: str | None):
    feeds = {"i": np.array(indices), "v": np.zeros(2), "s": np.array(shape)}
    violation = Constraints().violation(feeds, [("i", "v", "s")])
    assert (violation is None) == (why is None)
    assert why is None or why.replace("1, 2.", "[1, 2]") in (violation or "")


def test_elements_are_missing_together_only_where_two_inputs_say_so():
    found = Constraints()
    found.link([Extent(VALUES, missing=-1), Extent(OTHER, missing=0.0)])
    assert found.same_missing(VALUES) == {VALUES: -1, OTHER: 0.0}
    assert found.same_missing(SPLITS) == {}
    found.link([Extent(SPLITS, missing=-1), Extent(SPLITS)])
    assert found.same_missing(SPLITS) == {}


@pytest.mark.parametrize(
    ("bounds", "integers"),
    [
        (Bounds(), (0, 10)),
        (Bounds(low=0, without_low=True), (1, 11)),
        (Bounds(low=-5, high=20), (0, 10)),
        (Bounds(low=0.5, high=2.5), (1, 3)),
        (Bounds(high=3, without_high=True), (0, 3)),
        (Bounds(high=-3), (-12, -2)),
        (Bounds(low=1900), (1900, 1910)),
        (Bounds(low=3, high=3), (3, 4)),
    ],
)
def test_integers_between_bounds(bounds: Bounds, integers: tuple[int, int]):
    assert bounds.integers(10) == integers


def test_the_tighter_bounds_stay():
    strict = Bounds(high=20, without_high=True)
    assert Bounds(0, 20).clipped(strict) == Bounds(0, 20, without_high=True)
    assert strict.clipped(Bounds(high=30)) == strict
    found = Constraints()
    found.bound(VALUES, Bounds(low=1))
    found.bound(VALUES, Bounds(low=0, high=7))
    assert found.bounds == {VALUES: Bounds(1, 7)}
    assert found.bounds[VALUES].low < math.inf


def test_bounds_reach_along_orders():
    found = Constraints(bounds={VALUES: Bounds(low=1), OTHER: Bounds(high=9)})
    found.orders = {(SPLITS, OTHER): True, (VALUES, SPLITS): False}
    assert found.ordered_bounds(found.bounds) == {
        VALUES: Bounds(1, 9, without_high=True),
        SPLITS: Bounds(1, 9, without_high=True),
        OTHER: Bounds(1, 9, without_low=True),
    }


def test_ends_may_be_left_out():
    values = np.array([0.0, 0.5, 1.0])
    assert Bounds(0, 1).hold(values).tolist() == [True, True, True]
    assert Bounds(0, 1, without_low=True, without_high=True).hold(values).tolist() == [
        False,
        True,
        False,
    ]
