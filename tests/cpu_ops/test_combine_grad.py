from __future__ import annotations

import numpy as np
import pytest

from fusion.cpu_ops import combine_grad
from fusion.runtime.native.jit import callable_from_python
from tests.cpu_ops.bags import COMBINERS, Bags, clipped, divisor, row_addresses

scatter_rows = callable_from_python(combine_grad.scatter_rows)
unclip_rows = callable_from_python(combine_grad.unclip_rows)
weight_grads = callable_from_python(combine_grad.weight_grads)

NO_FLAGS = np.zeros(0, bool)


def run(bags, top_grad, combiner, weighted=False, is_row_empty=NO_FLAGS, mask_empty=False):
    """The gradients of the rows of the table."""
    starts, order = bags.grouped()
    dtype, dim = bags.table.dtype, bags.table.shape[1]
    grads = np.full_like(bags.table, np.nan)
    scatter_rows(
        top_grad,
        row_addresses(grads),
        bags.places,
        starts,
        order,
        is_row_empty,
        mask_empty,
        bags.weights,
        weighted,
        COMBINERS[combiner],
        dtype.type,
        np.empty(dim, dtype),
        np.empty(dim, dtype),
        np.empty(len(bags.table), bool),
    )
    return grads


def run_weights(bags, top_grad, combiner, is_row_empty=NO_FLAGS, mask_empty=False):
    """The gradients of the weights."""
    starts, order = bags.grouped()
    dtype, dim = bags.table.dtype, bags.table.shape[1]
    grads = np.full_like(bags.weights, np.nan)
    weight_grads(
        top_grad,
        bags.addresses,
        bags.places,
        starts,
        order,
        is_row_empty,
        mask_empty,
        bags.weights,
        COMBINERS[combiner],
        dtype.type,
        np.empty(dim, dtype),
        np.empty(dim, dtype),
        grads,
    )
    return grads


def exact(bags, top_grad, combiner):
    """Unweighted gradients, accumulated in the order of the entries of each row in turn."""
    dtype = bags.table.dtype.type
    grads, seen = np.zeros_like(bags.table), set()
    for row in range(bags.n_rows):
        entries = bags.entries(row)
        n = max(len(entries), 1)
        scaled = top_grad[row].copy()
        if combiner != "sum":
            scaled *= dtype(1 / n) if combiner == "mean" else dtype(1 / np.sqrt(n))
        for place in bags.places[entries]:
            grads[place] = grads[place] + scaled if place in seen else scaled
            seen.add(place)
    return grads


def gradient_of(rng, bags):
    return rng.standard_normal((bags.n_rows, bags.table.shape[1])).astype(bags.table.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dim", [1, 16, 2000])
def test_unweighted_gradients_are_exact(dtype, combiner, dim):
    rng = np.random.default_rng(dim)
    bags = Bags.random(rng, [*range(30), 100], dim, dtype, unique=40, shuffled=True)
    bags.places[bags.places == 7] = 8  # one id that has no entry
    top_grad = gradient_of(rng, bags)
    grads = run(bags, top_grad, combiner)
    assert grads.tobytes() == exact(bags, top_grad, combiner).tobytes()
    assert not grads[7].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_weighted_gradients(dtype, combiner):
    rng = np.random.default_rng(0)
    bags = Bags.random(rng, [*range(30)], 16, dtype)
    top_grad = gradient_of(rng, bags)
    expected, size = np.zeros((2, *bags.table.shape))
    for row in range(bags.n_rows):
        entries = bags.entries(row)
        z = divisor(bags, row, combiner, weighted=True) or 1
        terms = top_grad[row].astype(np.float64) * bags.weights[entries, None] / z
        np.add.at(expected, bags.places[entries], terms)
        np.add.at(size, bags.places[entries], np.abs(terms))
    # A term's divisor is a sum over a bag of at most 29, its gradient one over at most 435 terms.
    bound = 4 * np.finfo(dtype).eps * 29 * size
    assert np.all(np.abs(run(bags, top_grad, combiner, weighted=True) - expected) <= bound)


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


def test_masked_rows_give_zero_gradients_even_for_nan():
    bags = Bags.random(np.random.default_rng(3), [1, 1], 2, unique=2)
    bags.places = np.array([0, 1], np.int32)
    top_grad = np.array([[np.nan, np.inf], [1, 2]], np.float32)
    flags = np.array([True, False])
    grads = run(bags, top_grad, "sum", is_row_empty=flags, mask_empty=True)
    np.testing.assert_array_equal(grads, [[0, 0], [1, 2]])
    weights = run_weights(bags, top_grad, "sum", is_row_empty=flags, mask_empty=True)
    assert weights[0] == 0
    assert weights[1] == pytest.approx(bags.table[1] @ [1, 2])
    unmasked = run(bags, top_grad, "sum", is_row_empty=flags, mask_empty=False)
    assert np.isnan(unmasked[0, 0])


def test_nothing_to_scatter():
    bags = Bags.random(np.random.default_rng(4), [0, 0], 3, unique=2)
    np.testing.assert_array_equal(run(bags, np.ones((2, 3), np.float32), "mean"), 0)
    empty = Bags.random(np.random.default_rng(4), [], 3, unique=0)
    assert run(empty, np.ones((0, 3), np.float32), "mean").shape == (0, 3)
    assert run_weights(empty, np.ones((0, 3), np.float32), "mean").shape == (0,)


def test_the_sign_of_a_zero_gradient_is_kept():
    bags = Bags.random(np.random.default_rng(5), [1], 1)
    grads = run(bags, np.array([[-0.0]], np.float32), "sum")
    assert np.signbit(grads[bags.places[0]]).all()


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
