from __future__ import annotations

import numpy as np
import pytest

from fusion.cpu_ops import combine
from fusion.cpu_ops.row_tiles import AHEAD
from fusion.runtime.native.jit import callable_from_python
from tests.cpu_ops.bags import Bags, clipped, group_by_row, row_addresses

list_rows = callable_from_python(combine.list_rows)
list_weights = callable_from_python(combine.list_weights)
has_one_each = callable_from_python(combine.has_one_each)
clip_rows = callable_from_python(combine.clip_rows)
locate_rows = callable_from_python(combine.locate_rows)
locate_entries = callable_from_python(combine.locate_entries)
sort_bags = callable_from_python(combine.sort_bags)
first_unsorted = callable_from_python(combine.first_unsorted)
rows_until_last = callable_from_python(combine.rows_until_last)
first_outside = callable_from_python(combine.first_outside)
first_repeated = callable_from_python(combine.first_repeated)

NO_FLAGS = np.zeros(0, bool)


def listed(bags, is_row_empty=NO_FLAGS, mask_empty=False):
    """(places of the listed entries in the table, where bags start, order, counts)."""
    starts, order = bags.grouped()
    addresses = np.full(len(bags.rows) + AHEAD, -77, np.int64)
    counts = np.full(bags.n_rows, -77, np.int32)
    n = list_rows(
        bags.addresses, bags.places, starts, order, is_row_empty, mask_empty, addresses, counts
    )
    assert not addresses[n : n + AHEAD].any()
    places = (addresses[:n] - bags.table.ctypes.data) // bags.table.strides[0]
    return places.tolist(), starts.tolist(), order[:n].tolist(), counts.tolist()


def test_entries_are_listed_bag_by_bag_in_their_order():
    bags = Bags.random(np.random.default_rng(1), [3, 0, 25, 11], 5, shuffled=True)
    places, starts, order, counts = listed(bags)
    assert order == [k for row in range(4) for k in bags.entries(row)]
    assert places == bags.places[order].tolist()
    assert starts == [0, 3, 3, 28, 39]
    assert counts == [3, 0, 25, 11]


@pytest.mark.parametrize("mask_empty", [False, True])
def test_bags_of_flagged_rows_have_no_entries_only_if_asked_for(mask_empty):
    bags = Bags.random(np.random.default_rng(6), [2, 1, 1, 3], 2)
    flags = np.array([False, True, False])  # shorter than the batch: the last row has no flag
    _, starts, order, counts = listed(bags, flags, mask_empty)
    assert starts == ([0, 2, 2, 3, 6] if mask_empty else [0, 2, 3, 4, 7])
    assert order == ([0, 1, 3, 4, 5, 6] if mask_empty else [*range(7)])
    assert counts == [2, 1, 1, 3]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_nothing_to_list(lengths):
    bags = Bags.random(np.random.default_rng(5), lengths, 3)
    assert listed(bags) == ([], [0] * (len(lengths) + 1), [], lengths)


def test_weights_are_listed_in_order_and_rounded():
    out = np.empty(2, np.float32)
    list_weights(np.array([0.1, 9, 1 / 3]), np.array([2, 0], np.int32), np.float32, out)
    assert out.tobytes() == np.array([1 / 3, 0.1], np.float32).tobytes()


@pytest.mark.parametrize(
    ("starts", "expected"),
    [([0], True), ([0, 1, 2], True), ([0, 1, 1], False), ([0, 2, 2], False), ([0, 0, 2], False)],
)
def test_whether_each_bag_has_one_entry(starts, expected):
    assert has_one_each(np.array(starts)) == expected


@pytest.mark.parametrize("row", [-1, 2, 2**62, -(2**63)])
def test_grouping_reports_a_row_outside_the_batch(row):
    rows = np.array([[1, 0], [0, 0], [row, 0]])
    assert group_by_row(rows, 2, np.empty(3, np.int64), np.empty(3, np.int32)) == 2


def test_grouping_is_stable():
    rows = np.array([[2, 0], [0, 0], [2, 1], [0, 1], [2, 2]])
    starts, order = np.empty(4, np.int64), np.empty(5, np.int32)
    assert group_by_row(rows, 3, starts, order) == -1
    assert starts.tolist() == [0, 2, 2, 5]
    assert order.tolist() == [1, 3, 0, 2, 4]


def test_bags_are_sorted_by_column_1_and_equals_keep_their_order():
    indices = np.array([[1, 5], [0, 8], [1, 2], [1, 5], [0, 8], [1, -3], [0, 1]])
    starts, order = np.empty(4, np.int64), np.empty(7, np.int32)
    assert group_by_row(indices, 3, starts, order) == -1
    sort_bags(indices, starts, order, np.empty(7, np.int32))
    assert order.tolist() == [6, 1, 4, 5, 2, 0, 3]


def test_no_bags_to_sort():
    nothing = np.zeros(0, np.int32)
    sort_bags(np.zeros((0, 2), np.int64), np.zeros(1, np.int64), nothing, nothing)


@pytest.mark.parametrize(
    ("rows", "place"), [([], -1), ([4], -1), ([0, 0, 3], -1), ([0, 3, 2], 2), ([1, 0], 1)]
)
def test_first_unsorted(rows, place):
    pairs = np.array([(row, 0) for row in rows], np.int64).reshape(-1, 2)
    assert first_unsorted(pairs) == place


@pytest.mark.parametrize(
    ("rows", "count"),
    [([], 0), ([0], 1), ([1, 1, 4], 5), ([-1], 0), ([-(2**63)], 0), ([7, 2**40], 2**40 + 1)],
)
def test_rows_until_the_last_entry(rows, count):
    pairs = np.array([(row, 99) for row in rows], np.int64).reshape(-1, 2)
    assert rows_until_last(pairs) == count


@pytest.mark.parametrize("row", [2**62, 2**63 - 2, 2**63 - 1])
def test_the_number_of_rows_never_overflows(row):
    assert 2**47 < rows_until_last(np.array([[row, 0]])) < 2**60


@pytest.mark.parametrize(("places", "bad"), [([], -1), ([0, 2], -1), ([0, 3], 1), ([-1, 0], 0)])
def test_first_outside(places, bad):
    assert first_outside(np.array(places, np.int32), 3) == bad


def test_rows_of_shards_are_located():
    bases, counts = np.array([1000, 5000]), np.array([2, 1])
    permutation = np.array([[1, 0], [0, 1], [0, 0]], np.int32)
    addresses = np.empty(3, np.int64)
    assert locate_rows(permutation, bases, counts, 16, addresses) == -1
    assert addresses.tolist() == [5000, 1016, 1000]


def test_rows_of_entries_are_located_shard_by_shard():
    addresses = np.empty(3, np.int64)
    locate_entries(np.array([1000, 77, 5000]), np.array([2, 0, 1]), 16, addresses)
    assert addresses.tolist() == [1000, 1016, 5000]


def test_the_permutation_of_a_single_shard_is_not_read():
    addresses = np.empty(3, np.int64)
    dummy = np.array([[-5, -5]], np.int32)
    assert locate_rows(dummy, np.array([1000]), np.array([3]), 8, addresses) == -1
    assert addresses.tolist() == [1000, 1008, 1016]


@pytest.mark.parametrize("pair", [(-1, 0), (2, 0), (0, 2), (0, -1), (1, 1), (2**31 - 1, 0)])
def test_a_pair_outside_the_shards_is_reported(pair):
    permutation = np.array([[0, 0], pair], np.int32)
    bases, counts = np.array([1000, 5000]), np.array([2, 1])
    assert locate_rows(permutation, bases, counts, 16, np.empty(2, np.int64)) == 1


@pytest.mark.parametrize(
    ("pairs", "bad"),
    [([], -1), ([(0, 0), (1, 0), (0, 1)], -1), ([(0, 1), (1, 0), (0, 1)], 2), ([(1, 0)] * 3, 1)],
)
def test_a_pair_that_stands_twice_is_reported(pairs, bad):
    permutation = np.array(pairs, np.int32).reshape(-1, 2)
    firsts, seen = np.empty(2, np.int64), np.empty(3, np.bool_)
    assert first_repeated(permutation, np.array([2, 1]), firsts, seen) == bad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [0.0, 0.3, 1.0, 1e6])
@pytest.mark.parametrize("dim", [1, 16, 300])
def test_clipping(dtype, limit, dim):
    table = np.random.default_rng(dim).standard_normal((20, dim)).astype(dtype)
    out = np.empty_like(table)
    clip_rows(row_addresses(table), limit, dtype, out)
    expected = clipped(table, limit)
    assert np.all(np.abs(out - expected) <= 4 * np.finfo(dtype).eps * np.abs(expected))


def test_clipping_leaves_short_rows_their_bits():
    table = np.array([[0.3, 0.4], [3, 4]], np.float32)
    out = np.empty_like(table)
    clip_rows(row_addresses(table), 0.5, np.float32, out)
    np.testing.assert_allclose(out, [[0.3, 0.4], [0.3, 0.4]], rtol=1e-6)


def test_clipping_rows_that_are_not_numbers():
    table = np.array([[np.nan, 1], [np.inf, 1], [0, 0]], np.float32)
    out = np.empty_like(table)
    clip_rows(row_addresses(table), 1.0, np.float32, out)
    np.testing.assert_array_equal(out, [[np.nan, np.nan], [np.nan, 0], [0, 0]])
    clip_rows(row_addresses(table[2:]), 0.0, np.float32, out[2:])
    assert np.isnan(out[2]).all()
