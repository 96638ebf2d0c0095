"""Half types as bits: float16 and bfloat16 to float32 and back.

Numba has no such types on the CPU, so that kernels see uint16. The conversions are arithmetic that
LLVM vectorizes. No intermediate is a float32 denormal, since TensorFlow's threads read and write
those as zeros, which half denormals are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from fusion.runtime.native.jit import Array, jit
from fusion.runtime.native.memory import pointer
from fusion.runtime.tensorflow.dtypes import DTYPES

#: float32 has 13 and 16 more bits of mantissa; its exponents are those of bfloat16, and those of
#: float16 plus this.
_EXPONENT = 112 << 23
_INFINITY = 0xFF << 23
_ONE_HALF = 126 << 23


@jit
def _float(bits: Any) -> Any:
    """The float32 with these bits."""
    return np.uint32(bits).view(np.float32)


@jit
def _bits(value: Any) -> Any:
    """The bits of a float32."""
    return np.float32(value).view(np.uint32)


@jit
def _widen_float16(half: int) -> Any:
    word = np.int64(half)  # on the device, too, whose simulator has NumPy's arithmetic
    magnitude = word & 0x7FFF
    bits = (magnitude << 13) + _EXPONENT
    if magnitude < 0x400:  # denormal: a multiple of 2^-24
        bits = _bits(np.float32(magnitude) * np.float32(2.0**-24))
    elif magnitude >= 0x7C00:
        bits = (magnitude << 13) | _INFINITY
    return _float(bits | ((word & 0x8000) << 16))


@jit
def _narrow_float16(value: float) -> Any:
    bits = _bits(value)
    magnitude = bits & 0x7FFFFFFF
    half = (magnitude - _EXPONENT + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    if magnitude < _EXPONENT + (1 << 23):  # denormal: adding 0.5 rounds to multiples of 2^-24
        half = _bits(_float(magnitude) + np.float32(0.5)) - _ONE_HALF
    elif magnitude > _INFINITY:
        half = 0x7E00
    elif magnitude >= _EXPONENT + (31 << 23):
        half = 0x7C00
    return np.uint16(half | ((bits >> 16) & 0x8000))


@jit
def _widen_bfloat16(half: int) -> Any:
    return _float(np.uint32(half) << 16)


@jit
def _narrow_bfloat16(value: float) -> Any:
    bits = _bits(value)
    half = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    if bits & 0x7FFFFFFF > _INFINITY:
        half = (bits >> 16) | 0x40
    return np.uint16(half)


@jit
def _flat(array: Array, dtype: type) -> Array:
    return carray(pointer(array.ctypes.data, dtype), (array.size,))


_CONVERSIONS = {
    "float16": (_widen_float16, _narrow_float16),
    "bfloat16": (_widen_bfloat16, _narrow_bfloat16),
}


def widener(name: str) -> Any:
    """The jitted function of an element of half type `name`, as bits, to its float32."""
    return _CONVERSIONS[name][0]


def narrower(name: str) -> Any:
    """The jitted function of a float32 to the bits of the nearest element of half type `name`."""
    return _CONVERSIONS[name][1]


def converters(name: str) -> tuple[Any, Any]:
    """The jitted functions `widen(halves, out)` and `narrow(values, out)` of half type `name`.

    `halves` are uint16, `values` float32; `out` is of the same shape, and all are C-contiguous.
    Widening is exact; narrowing rounds to nearest even, to infinity where a value is too large. A
    NaN stays one.
    """
    to_float, to_half = _CONVERSIONS[name]
    bits, compute = DTYPES[name].stored_type, DTYPES[name].compute_type

    @jit
    def widen(halves: Array, out: Array) -> None:
        source, target = _flat(halves, bits), _flat(out, compute)
        for k in range(target.shape[0]):
            target[k] = to_float(source[k])

    @jit
    def narrow(values: Array, out: Array) -> None:
        source, target = _flat(values, compute), _flat(out, bits)
        for k in range(target.shape[0]):
            target[k] = to_half(source[k])

    return widen, narrow
