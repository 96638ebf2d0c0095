from __future__ import annotations

import numpy as np
import pytest

from fusion.cpu_ops import combine
from fusion.ops.bags.cpu_kernels import combine_grad
from fusion.runtime.native.jit import callable_from_python
from tests.cpu_ops.bags import COMBINERS, Bags, clipped, row_addresses

list_sums = callable_from_python(combine_grad.list_sums)
unclip_rows = callable_from_python(combine_grad.unclip_rows)
weight_grads = callable_from_python(combine_grad.weight_grads)

NO_FLAGS = np.zeros(0, bool)


def list_of_sums(bags):
    """(rows of the table by their numbers, where bags start, the number of each entry's row)."""
    starts, order = bags.grouped()
    count, m = len(bags.table), len(bags.rows)
    ranks, sums = np.empty(count, np.int32), np.empty(count, np.int64)
    splits, listed = np.empty(bags.n_rows + 1, np.int32), np.empty(m, np.int32)
    list_sums(bags.addresses, bags.places, starts, order, ranks, sums, splits, listed)
    rows = (sums - bags.table.ctypes.data) // bags.table.strides[0]
    return rows.tolist(), splits.tolist(), listed.tolist()


def run_weights(bags, top_grad, combiner, is_row_empty=NO_FLAGS, mask_empty=False):
    """The gradients of the weights."""
    starts, order = bags.grouped()
    dtype, dim = bags.table.dtype, bags.table.shape[1]
    grads = np.full_like(bags.weights, np.nan)
    given = combine.Bags(
        bags.addresses, bags.places, starts, order, is_row_empty, mask_empty, bags.weights
    )
    scaled, total = np.empty(dim, dtype), np.empty(dim, dtype)
    weight_grads(
        top_grad, bags.addresses, given, COMBINERS[combiner], dtype.type, scaled, total, grads
    )
    return grads


def gradient_of(rng, bags):
    return rng.standard_normal((bags.n_rows, bags.table.shape[1])).astype(bags.table.dtype)


def test_rows_are_numbered_as_they_occur_in_bags():
    bags = Bags.random(np.random.default_rng(0), [2, 0, 2], 3, unique=5)
    bags.rows[:, 0] = [2, 0, 2, 0]
    bags.places = np.array([4, 1, 0, 4], np.int32)  # by bag: 1 4, none, 4 0; not 2 and 3
    assert list_of_sums(bags) == ([1, 4, 0, 2, 3], [0, 2, 2, 4], [0, 1, 1, 2])


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weight_gradients_are_the_slopes_of_the_forward_pass(combiner):
    rng = np.random.default_rng(1)
    bags = Bags.random(rng, [0, 1, 2, 5, 12], 6, np.float64, shuffled=True)
    top_grad = gradient_of(rng, bags)

    def loss(weights):
        total = 0.0
        for row in range(bags.n_rows):
            entries = bags.entries(row)
            if len(entries):
                w = weights[entries]
                z = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
                total += top_grad[row] @ (w @ bags.table[bags.places[entries]]) / z
        return total

    grads, step = run_weights(bags, top_grad, combiner), 1e-6
    for k in range(len(grads)):
        shift = np.zeros_like(bags.weights)
        shift[k] = step
        slope = (loss(bags.weights + shift) - loss(bags.weights - shift)) / (2 * step)
        assert grads[k] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weight_gradients_of_weights_that_are_all_zero(combiner):
    bags = Bags.random(np.random.default_rng(2), [2], 3)
    bags.weights[:] = 0
    np.testing.assert_array_equal(run_weights(bags, np.ones((1, 3), np.float32), combiner), 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipping_a_row_whose_norm_overflows_gives_zero_gradients(dtype):
    table = np.full((1, 20), np.finfo(dtype).max / 2, dtype)
    grads = np.ones_like(table)
    unclip_rows(row_addresses(table), row_addresses(grads), 20, 0.5, dtype)
    np.testing.assert_array_equal(grads, 0)


def test_masked_rows_give_weights_zero_gradients_even_for_nan():
    bags = Bags.random(np.random.default_rng(3), [1, 1], 2, unique=2)
    bags.places = np.array([0, 1], np.int32)
    top_grad = np.array([[np.nan, np.inf], [1, 2]], np.float32)
    flags = np.array([True, False])
    weights = run_weights(bags, top_grad, "sum", is_row_empty=flags, mask_empty=True)
    assert weights[0] == 0
    assert weights[1] == pytest.approx(bags.table[1] @ [1, 2])


def test_nothing_to_list():
    bags = Bags.random(np.random.default_rng(4), [0, 0], 3, unique=2)
    assert list_of_sums(bags) == ([0, 1], [0, 0, 0], [])
    empty = Bags.random(np.random.default_rng(4), [], 3, unique=0)
    assert list_of_sums(empty) == ([], [0], [])
    assert run_weights(empty, np.ones((0, 3), np.float32), "mean").shape == (0,)


@pytest.mark.parametrize("limit", [0.0, 0.5, 2.0, 1e6])
def test_clipping_is_differentiated(limit):
    rng = np.random.default_rng(6)
    table = rng.standard_normal((8, 5)) * np.linspace(0.1, 3, 8)[:, None]
    grads = rng.standard_normal((8, 5))
    actual, step = grads.copy(), 1e-7
    unclip_rows(row_addresses(table), row_addresses(actual), 5, limit, np.float64)
    for d in range(5):
        shift = step * np.eye(5)[d]
        slope = (clipped(table + shift, limit) - clipped(table - shift, limit)) / (2 * step)
        np.testing.assert_allclose(actual[:, d], (slope * grads).sum(1), atol=1e-6)


def test_rows_within_the_limit_keep_the_bits_of_their_gradient():
    table = np.array([[0.3, 0.1], [3, 4]], np.float32)
    grads = np.array([[1 / 3, 0.1], [1 / 3, 0.1]], np.float32)
    actual = grads.copy()
    unclip_rows(row_addresses(table), row_addresses(actual), 2, 1.0, np.float32)
    assert actual[0].tobytes() == grads[0].tobytes()
    assert np.all(actual[1] != grads[1])


def test_at_the_limit_the_gradient_goes_through_the_norm():
    # As in stock TensorFlow: of two equal arguments, Maximum's gradient goes to the norm.
    table, grads = np.array([[3.0, 4.0]]), np.array([[3.0, 4.0]])
    unclip_rows(row_addresses(table), row_addresses(grads), 2, 5.0, np.float64)
    np.testing.assert_allclose(grads, [[0, 0]], atol=1e-12)
