"""Norms of rows, in all dtypes."""

import functools

import ml_dtypes
import numpy as np
import pytest

from fusion.cpu_ops.norms import norm_of, row_norm
from fusion.runtime.native.jit import callable_from_python, jit

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


@functools.cache
def compiled_norm(name):
    """A function of the address of a row and its length."""
    of_row, dtype = norm_of(name), np.float64 if name == "float64" else np.float32

    @jit
    def of_address(address, dim):
        return of_row(address, dim, dtype)

    return callable_from_python(of_address)


def norm(row, name):
    """The norm of a row, in the dtype that it is computed in."""
    return compiled_norm(name)(row.ctypes.data, len(row))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 7, 8, 9, 16, 33, 1000])
def test_of_rows_of_all_lengths(dim, name):
    rng = np.random.default_rng(dim)
    row = rng.standard_normal(dim).astype(DTYPES[name])
    found = norm(row, name)
    expected = np.linalg.norm(row.astype(np.float64))
    assert found == pytest.approx(expected, rel=1e-14 if name == "float64" else 1e-7)


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_counts_once(name):
    for dim in (8, 19):
        for place in range(dim):
            row = np.zeros(dim, DTYPES[name])
            row[place] = -3
            assert norm(row, name) == 3


def test_squares_that_do_not_fit_give_infinity():
    assert norm(np.full(9, 1e30, np.float32), "float32") == np.inf
    assert norm(np.full(9, 1e200), "float64") == np.inf
    assert norm(np.full(9, 6e4, np.float16), "float16") == pytest.approx(18e4, rel=1e-3)


@pytest.mark.parametrize("place", [3, 8])
def test_nan_stays(place):
    row = np.ones(9, np.float32)
    row[place] = np.nan
    assert np.isnan(norm(row, "float32"))


def test_float_types_share_one_function():
    assert norm_of("float32") is norm_of("float64") is row_norm
