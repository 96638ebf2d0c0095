from __future__ import annotations

import numpy as np
import pytest

from fusion.cpu_ops import combine
from fusion.runtime.native.jit import callable_from_python
from tests.cpu_ops.bags import COMBINERS, Bags, clipped, divisor, group_by_row, row_addresses

combine_bags = callable_from_python(combine.combine_bags)
clip_rows = callable_from_python(combine.clip_rows)
locate_rows = callable_from_python(combine.locate_rows)
locate_entries = callable_from_python(combine.locate_entries)
sort_bags = callable_from_python(combine.sort_bags)
first_unsorted = callable_from_python(combine.first_unsorted)
rows_until_last = callable_from_python(combine.rows_until_last)
first_outside = callable_from_python(combine.first_outside)
first_repeated = callable_from_python(combine.first_repeated)

NO_FLAGS = np.zeros(0, bool)


def run(bags, combiner, weighted=False, is_row_empty=NO_FLAGS, mask_empty=False, no_nan=True):
    """(out, counts)."""
    starts, order = bags.grouped()
    dtype, dim = bags.table.dtype, bags.table.shape[1]
    out = np.full((bags.n_rows, dim), -77, dtype)
    counts = np.full(bags.n_rows, -77, np.int32)
    combine_bags(
        bags.addresses,
        bags.places,
        starts,
        order,
        is_row_empty,
        mask_empty,
        bags.weights,
        weighted,
        COMBINERS[combiner],
        no_nan,
        dtype.type,
        np.empty(dim, dtype),
        out,
        counts,
    )
    return out, counts


def exact(bags, combiner):
    """Unweighted bags with stock TensorFlow's rounding, as written in the kernel's docstring."""
    dtype = bags.table.dtype.type
    out = np.zeros((bags.n_rows, bags.table.shape[1]), dtype)
    for row in range(bags.n_rows):
        vectors = bags.table[bags.places[bags.entries(row)]]
        n = len(vectors)
        if n == 0:
            continue
        head = {0: 8, 1: 9}.get(n % 8, n % 8)
        total = vectors[0].copy()
        for vector in vectors[1 : min(head, n)]:
            total += vector
        for first in range(head, n, 8):
            block = vectors[first].copy()
            for vector in vectors[first + 1 : first + 8]:
                block += vector
            total += block
        if combiner != "sum":
            z = dtype(n) if combiner == "mean" else dtype(np.sqrt(n))
            total = total * (dtype(1) / z) if n <= 9 else total / z
        out[row] = total
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dim", [1, 2, 7, 16, 64, 300, 2000])
def test_unweighted_bags_are_exact(dtype, combiner, dim):
    lengths = [*range(41), 100, 333]
    bags = Bags.random(np.random.default_rng(dim), lengths, dim, dtype)
    out, counts = run(bags, combiner)
    assert out.tobytes() == exact(bags, combiner).tobytes()
    np.testing.assert_array_equal(counts, lengths)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dim", [1, 16, 300])
def test_weighted_bags(dtype, combiner, dim):
    lengths = [*range(41), 200]
    bags = Bags.random(np.random.default_rng(dim), lengths, dim, dtype)
    out, counts = run(bags, combiner, weighted=True)
    for row, n in enumerate(lengths):
        entries = bags.entries(row)
        terms = bags.table[bags.places[entries]].astype(np.float64)
        terms *= bags.weights[entries, None].astype(np.float64)
        z = divisor(bags, row, combiner, weighted=True) or 1
        bound = 4 * np.finfo(dtype).eps * n * np.abs(terms / z).sum(0)
        assert np.all(np.abs(out[row] - terms.sum(0) / z) <= bound)
    np.testing.assert_array_equal(counts, lengths)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_one_row_with_a_hundred_thousand_entries(combiner, weighted):
    bags = Bags.random(np.random.default_rng(0), [0, 100_000, 1], 4, unique=5000)
    out, counts = run(bags, combiner, weighted)
    entries = bags.entries(1)
    factors = bags.weights[entries].astype(np.float64) if weighted else np.ones(100_000)
    terms = bags.table[bags.places[entries]].astype(np.float64) * factors[:, None]
    z = divisor(bags, 1, combiner, weighted)
    bound = 4 * np.finfo(np.float32).eps * 100_000 * np.abs(terms / z).sum(0)
    assert np.all(np.abs(out[1] - terms.sum(0) / z) <= bound)
    np.testing.assert_array_equal(counts, [0, 100_000, 1])
    np.testing.assert_array_equal(out[0], 0)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_unsorted_rows_keep_their_order_inside_a_row(combiner):
    bags = Bags.random(np.random.default_rng(1), [3, 0, 25, 11], 5, shuffled=True)
    assert run(bags, combiner)[0].tobytes() == exact(bags, combiner).tobytes()


def test_duplicates_count_each_time():
    bags = Bags.random(np.random.default_rng(2), [6], 3, unique=1)
    out, counts = run(bags, "mean")
    np.testing.assert_allclose(out[0], bags.table[0], rtol=1e-6)
    assert counts.tolist() == [6]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_nan_and_inf_stay_in_their_bags(combiner, weighted):
    bags = Bags.random(np.random.default_rng(3), [2, 2, 2], 2, unique=6)
    bags.places = np.arange(6, dtype=np.int32)
    bags.table[0, 0], bags.table[2, 1], bags.table[3, 1] = np.nan, np.inf, -np.inf
    out, _ = run(bags, combiner, weighted)
    np.testing.assert_array_equal(np.isnan(out), [[True, False], [False, True], [False, False]])


def test_a_row_without_entries_does_not_see_the_table():
    bags = Bags.random(np.random.default_rng(4), [0, 1], 2)
    bags.table[:] = np.nan
    assert run(bags, "mean")[0][0].tolist() == [0, 0]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_nothing_to_combine(lengths, combiner):
    bags = Bags.random(np.random.default_rng(5), lengths, 3)
    out, counts = run(bags, combiner)
    np.testing.assert_array_equal(out, np.zeros((len(lengths), 3)))
    np.testing.assert_array_equal(counts, lengths)


@pytest.mark.parametrize("mask_empty", [False, True])
def test_flagged_rows_are_zeros_only_if_asked_for(mask_empty):
    bags = Bags.random(np.random.default_rng(6), [1, 1, 1], 2)
    flags = np.array([True, False])  # shorter than the batch: the last row has no flag
    out, counts = run(bags, "sum", is_row_empty=flags, mask_empty=mask_empty)
    expected = exact(bags, "sum")
    expected[0] = 0 if mask_empty else expected[0]
    np.testing.assert_array_equal(out, expected)
    assert counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weights_that_sum_to_zero_give_zeros(combiner):
    bags = Bags.random(np.random.default_rng(7), [2, 3], 2)
    bags.weights[:] = 0
    np.testing.assert_array_equal(run(bags, combiner, weighted=True)[0], 0)


def test_zero_weights_do_not_hide_nan_in_a_sum():
    bags = Bags.random(np.random.default_rng(8), [1], 2)
    bags.weights[:], bags.table[:] = 0, np.nan
    assert np.isnan(run(bags, "sum", weighted=True)[0]).all()


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
