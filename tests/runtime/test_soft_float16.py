"""Conversions of float16 on processors without instructions for them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from fusion.cpu_ops.kernel_indices import GATHER_VARIANTS, shape_index
from fusion.ops.base.row_kernels import GATHERS
from fusion.runtime.cache import processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.native import compiler, objects
from fusion.runtime.native.soft_float16 import CONVERSIONS
from fusion.runtime.tensorflow.dtypes import DTYPES

_CALLS = """
define void @widen(ptr %from, ptr %to, i64 %count) {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %in = getelementptr half, ptr %from, i64 %k
  %half = load half, ptr %in
  %number = call float @__extendhfsf2(half %half)
  %out = getelementptr float, ptr %to, i64 %k
  store float %number, ptr %out
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @narrow(ptr %from, ptr %to, i64 %count) {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %in = getelementptr float, ptr %from, i64 %k
  %number = load float, ptr %in
  %half = call half @__truncsfhf2(float %number)
  %out = getelementptr half, ptr %to, i64 %k
  store half %half, ptr %out
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
_KIND = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@pytest.fixture(scope="module")
def functions():
    widen, narrow = objects.load_ir(CONVERSIONS + _CALLS, ["widen", "narrow"])
    return _KIND(widen), _KIND(narrow)


def converted(function, numbers, dtype):
    result = np.empty(numbers.shape, dtype)
    function(numbers.ctypes.data, result.ctypes.data, len(numbers))
    return result


def quiet(bits, bit, exponent):
    """The bits of numbers, NaNs made quiet."""
    magnitude = bits & np.asarray(2 ** (bits.itemsize * 8 - 1) - 1, bits.dtype)
    return np.where(magnitude > exponent, bits | np.asarray(bit, bits.dtype), bits)


def test_every_float16_becomes_the_same_float32(functions):
    halves = np.arange(2**16, dtype=np.uint16)
    found = converted(functions[0], halves.view(np.float16), np.float32).view(np.uint32)
    expected = halves.view(np.float16).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(found, quiet(expected, 2**22, 0x7F800000))


def test_float32_is_rounded_to_the_nearest_even(functions):
    rng = np.random.default_rng(0)
    halves = np.arange(2**15, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    middles = (finite[:-1] / 2 + finite[1:] / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(sign * np.inf)) for sign in (-1, 1)]
    random = rng.integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    edges = np.array(
        [0, 1e-45, 1e-38, 6e-8, 2.9802322e-8, 65504, 65519.996, 65520, np.inf, np.nan], np.float32
    )
    numbers = np.concatenate([halves, middles, *near, random, edges])
    numbers = np.concatenate([numbers, -numbers])
    found = converted(functions[1], numbers, np.float16).view(np.uint16)
    with np.errstate(all="ignore"):
        expected = numbers.astype(np.float16).view(np.uint16)
    is_nan = np.isnan(numbers)
    np.testing.assert_array_equal(found[~is_nan], expected[~is_nan])
    nans = numbers.view(np.uint32)[is_nan]
    payloads = (nans >> 16 & 0x8000 | 0x7E00 | nans >> 13 & 0x3FF).astype(np.uint16)
    np.testing.assert_array_equal(found[is_nan], payloads)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_kernels_call_no_library(level):
    index = shape_index(DTYPES["float16"].code, 0) * GATHER_VARIANTS
    with processor.compiling_for(Processor(level)):
        code = GATHERS.at(index).compile_it()
    assert not compiler.undefined_symbols(code) - {""}
