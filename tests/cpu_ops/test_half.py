"""The conversions of half types, against NumPy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fusion.cpu_ops import half
from fusion.runtime.native.jit import callable_from_python
from fusion.runtime.tensorflow.dtypes import DTYPES

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EVERY_HALF = np.arange(2**16, dtype=np.uint16)


CONVERTERS = {name: tuple(map(callable_from_python, half.converters(name))) for name in TYPES}


def widened(name, halves):
    out = np.full(halves.shape, 7, np.float32)
    CONVERTERS[name][0](halves, out)
    return out


def narrowed(name, values):
    out = np.full(values.shape, 7, np.uint16)
    CONVERTERS[name][1](values, out)
    return out


def assert_same_numbers(actual, expected):
    """Equal bits, but that one NaN is as good as another."""
    assert actual.dtype == expected.dtype
    bits = np.uint16 if actual.itemsize == 2 else np.uint32
    with np.errstate(invalid="ignore"):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual.view(bits)[~nan], expected.view(bits)[~nan])


def assert_narrows_as_numpy(name, values):
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(TYPES[name])
    assert_same_numbers(narrowed(name, values).view(TYPES[name]), expected)


def test_the_half_types():
    assert {name for name, dtype in DTYPES.items() if dtype.is_widened} == set(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_every_half_widens_exactly(name):
    expected = EVERY_HALF.view(TYPES[name]).astype(np.float32)
    assert_same_numbers(widened(name, EVERY_HALF), expected)


@pytest.mark.parametrize("name", TYPES)
def test_every_half_comes_back(name):
    back = narrowed(name, widened(name, EVERY_HALF)).view(TYPES[name])
    assert_same_numbers(back, EVERY_HALF.view(TYPES[name]))


@pytest.mark.parametrize("name", TYPES)
def test_ties_and_their_neighbours(name):
    # Between every half and the next one, the largest and infinity included.
    with np.errstate(invalid="ignore"):
        every = EVERY_HALF.view(TYPES[name]).astype(np.float64)
    below = np.sort(every[np.isfinite(every)])
    ties = below + np.append(np.diff(below), below[-1] - below[-2]) / 2
    ties = np.concatenate([ties, -ties]).astype(np.float32)
    for values in (
        ties,
        np.nextafter(ties, np.float32(-np.inf)),
        np.nextafter(ties, np.float32(np.inf)),
    ):
        assert_narrows_as_numpy(name, values)


@pytest.mark.parametrize("name", TYPES)
def test_any_bits(name):
    bits = np.random.default_rng(0).integers(0, 2**32, 10**6, dtype=np.uint32)
    assert_narrows_as_numpy(name, bits.view(np.float32))


@pytest.mark.parametrize("name", TYPES)
def test_any_bits_of_the_range_of_halves(name):
    finfo = ml_dtypes.finfo(TYPES[name])
    low, high = np.log2(float(finfo.smallest_subnormal)) - 3, np.log2(float(finfo.max)) + 1
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        values = (2.0 ** rng.uniform(low, high, 10**6)).astype(np.float32)
    assert_narrows_as_numpy(name, values * rng.choice([-1, 1], 10**6).astype(np.float32))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF])
def test_nan_stays_nan(name, bits):
    # The smallest payloads are those that cutting off bits turns into infinity.
    value = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(narrowed(name, value).view(TYPES[name]))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(0,), (1,), (0, 3), (3, 0), (5, 7)])
def test_arrays_of_any_shape(name, shape):
    halves = np.random.default_rng(2).standard_normal(shape).astype(TYPES[name])
    values = widened(name, halves.view(np.uint16))
    np.testing.assert_array_equal(values, halves.astype(np.float32))
    np.testing.assert_array_equal(narrowed(name, values), halves.view(np.uint16))
