from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from fusion.saved_model.verify.outcome import Outcome, OutcomeWriter, read_outcomes, same_bits


def test_outcomes_survive_the_disk(tmp_path: Path):
    tensors = {
        "f": np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32),
        "b": np.array([1.5, -2], ml_dtypes.bfloat16),
        "s": np.array([b"", b"\x00\xff\x00"], dtype=object),
        "e": np.zeros([0, 3], np.int64),
    }
    good = Outcome("session", "serving_default", "batch 1", tuple(tensors), varying=("f",))
    bad = Outcome("session", "serving_default", "batch 2", error="OutOfRangeError", message="x")
    writer = OutcomeWriter(tmp_path)
    writer.write(good, tensors)
    writer.write(bad, {})
    writer.close()
    (first, values), (second, nothing) = read_outcomes(tmp_path)
    assert (first, second, nothing) == (good, bad, {})
    assert values.keys() == tensors.keys()
    for key, array in tensors.items():
        assert values[key].dtype == array.dtype
        assert values[key].shape == array.shape
        assert same_bits(values[key], array).all()


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
