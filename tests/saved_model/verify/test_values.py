from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from fusion.saved_model.verify.values import difference_of, same_bits, unmatched


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_any_nan_equals_any_nan_and_zeros_keep_their_sign(dtype: type):
    a: NDArray[Any] = np.array([np.nan, 0.0, 1.0, np.nan], dtype)
    b: NDArray[Any] = np.array([-np.nan, -0.0, 1.0, 2.0], dtype)
    assert same_bits(a, b).tolist() == [True, False, True, False]


def test_integers_strings_and_scalars():
    assert same_bits(np.array([1, 2]), np.array([1, 3])).tolist() == [True, False]
    assert same_bits(np.array(b"a", object), np.array(b"a", object)).all()
    assert not same_bits(np.array(b"a", object), np.array(b"b", object)).any()
    assert same_bits(np.array(1.0), np.array(1.0)).all()


def test_a_difference_tells_which_elements_and_how_far():
    a, b = np.array([1.0, 2.0, np.inf]), np.array([1.0, 2.5, 3.0])
    found = difference_of(a, b, 0.0)
    assert found is not None
    assert found.differing.tolist() == [False, True, True]
    assert found.max_abs == 0.5
    assert found.detail == "2 of 3 elements differ, by at most 0.5"
    assert difference_of(a, a.copy(), 0.0) is None


def test_a_tolerance_is_for_numbers_alone():
    a, b = np.array([100.0, 1.0]), np.array([100.0, 1.5])
    assert difference_of(a, b, 0.01) is None
    found = difference_of(a, b, 0.001)
    assert found is not None
    assert found.differing.tolist() == [False, True]
    assert difference_of(np.array([100, 1]), np.array([100, 2]), 0.5) is not None


def test_other_shapes_and_dtypes_have_no_elements_to_compare():
    found = difference_of(np.zeros(2, np.float32), np.zeros((2, 1), np.float64), 1.0)
    assert found is not None
    assert found.detail == "float32 [2] against float64 [2, 1]"
    assert found.differing.size == 0


def test_calls_are_compared_in_any_order():
    one, two, three = (np.array([n]) for n in (1.0, 2.0, 3.0))
    assert unmatched([one, two, two], [two, one, two], 0.0) is None
    assert unmatched([one, two, two], [two, one, three], 0.0) == (two, three)
    assert unmatched([one, one], [one, three], 0.0) == (one, three)
    assert unmatched([two], [two + 1e-9], 1e-6) is None
