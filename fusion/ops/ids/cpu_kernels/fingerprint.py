"""Fingerprint64 of FarmHash (Copyright 2014 Google, MIT licence), for StringToHashBucketFast.

Fingerprints are joined as TensorFlow does for crosses (FingerprintCat64): as MurmurHash adds words.

The names of steps are those of its description: `mix` is its ShiftMix, `joined` its HashLen16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.ops.ids.cpu_kernels.words import (
    Word,
    half,
    one_byte,
    rotated_right,
    unsigned,
    word,
)
from fusion.runtime.native.jit import inlined, jit

#: Primes between 2**63 and 2**64.
_K0, _K1, _K2 = map(np.uint64, (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F))

#: Of MurmurHash.
_FACTOR = np.uint64(0xC6A4A7935BD1E995)


@inlined
def _mixed(value: Any) -> Any:
    return value ^ (value >> Word(47))


@inlined
def _joined(one: Any, other: Any, factor: Any) -> Any:
    first = _mixed((one ^ other) * factor)
    return _mixed((other ^ first) * factor) * factor


@inlined
def _factor(size: int) -> Any:
    return _K2 + unsigned(size) * Word(2)


@inlined
def of_8_to_16(first: Any, last: Any, size: int) -> Any:
    """Of 8 to 16 bytes, of which these are the first and the last eight."""
    factor, shifted = _factor(size), first + _K2
    one = rotated_right(last, 37) * factor + shifted
    return _joined(one, (rotated_right(shifted, 25) + last) * factor, factor)


@inlined
def of_4_to_7(first: Any, last: Any, size: int) -> Any:
    """Of 4 to 7 bytes, of which these are the first and the last four."""
    return _joined(unsigned(size) + (first << Word(3)), last, _factor(size))


@inlined
def of_1_to_3(first: Any, middle: Any, last: Any, size: int) -> Any:
    """Of 1 to 3 bytes, of which these are the first, that at half the size, and the last."""
    one, other = first + (middle << Word(8)), unsigned(size) + (last << Word(2))
    return _mixed((one * _K2) ^ (other * _K0)) * _K2


@jit
def _of_17_to_32(at: int, size: int) -> Any:
    factor, end = _factor(size), at + size
    a, b = word(at) * _K1, word(at + 8)
    c, d = word(end - 8) * factor, word(end - 16) * _K2
    one = rotated_right(a + b, 43) + rotated_right(c, 30) + d
    return _joined(one, a + rotated_right(b + _K2, 18) + c, factor)


@jit
def _of_33_to_64(at: int, size: int) -> Any:
    factor, end = _factor(size), at + size
    a, b = word(at) * _K2, word(at + 8)
    c, d = word(end - 8) * factor, word(end - 16) * _K2
    y = rotated_right(a + b, 43) + rotated_right(c, 30) + d
    z = _joined(y, a + rotated_right(b + _K2, 18) + c, factor)
    e, f = word(at + 16) * factor, word(at + 24)
    g, h = (y + word(end - 32)) * factor, (z + word(end - 24)) * factor
    one = rotated_right(e + f, 43) + rotated_right(g, 30) + h
    return _joined(one, e + rotated_right(f + a, 18) + g, factor)


@inlined
def _pair(at: int, a: Any, b: Any) -> tuple[Any, Any]:
    """Two words of 32 bytes and two others."""
    first, second, third, fourth = word(at), word(at + 8), word(at + 16), word(at + 24)
    a += first
    b = rotated_right(b + a + fourth, 21)
    before = a
    a += second + third
    b += rotated_right(a, 44)
    return a + fourth, b + before


@jit
def _of_more(at: int, size: int) -> Any:
    """Of more than 64 bytes: blocks of 64, the last of which may overlap the one before."""
    x, y = Word(81), Word(81) * _K1 + Word(113)
    z = _mixed(y * _K2 + Word(113)) * _K2
    v0, v1, w0, w1 = Word(0), Word(0), Word(0), Word(0)
    x = x * _K2 + word(at)
    end, last = at + (size - 1) // 64 * 64, at + size - 64
    while at != end:
        x = rotated_right(x + y + v0 + word(at + 8), 37) * _K1
        y = rotated_right(y + v1 + word(at + 48), 42) * _K1
        x ^= w1
        y += v0 + word(at + 40)
        z = rotated_right(z + w0, 33) * _K1
        v0, v1 = _pair(at, v1 * _K1, x + w0)
        w0, w1 = _pair(at + 32, z + w1, y + word(at + 16))
        x, z = z, x
        at += 64
    factor, at = _K1 + ((z & Word(255)) << Word(1)), last
    w0 += unsigned((size - 1) & 63)
    v0 += w0
    w0 += v0
    x = rotated_right(x + y + v0 + word(at + 8), 37) * factor
    y = rotated_right(y + v1 + word(at + 48), 42) * factor
    x ^= w1 * Word(9)
    y += v0 * Word(9) + word(at + 40)
    z = rotated_right(z + w0, 33) * factor
    v0, v1 = _pair(at, v1 * factor, x + w0)
    w0, w1 = _pair(at + 32, z + w1, y + word(at + 16))
    x, z = z, x
    one = _joined(v0, w0, factor) + _mixed(y) * _K0 + z
    return _joined(one, _joined(v1, w1, factor) + x, factor)


@inlined
def fingerprint(at: int, size: int) -> Any:
    """Of any bytes."""
    if size > 64:
        return _of_more(at, size)
    if size > 32:
        return _of_33_to_64(at, size)
    if size > 16:
        return _of_17_to_32(at, size)
    if size >= 8:
        return of_8_to_16(word(at), word(at + size - 8), size)
    if size >= 4:
        return of_4_to_7(half(at), half(at + size - 4), size)
    if size > 0:
        return of_1_to_3(one_byte(at), one_byte(at + (size >> 1)), one_byte(at + size - 1), size)
    return _K2


@inlined
def concatenated(one: Any, other: Any) -> Any:
    """The fingerprint of two fingerprints, in this order."""
    state = (one ^ _FACTOR ^ (_mixed(other * _FACTOR) * _FACTOR)) * _FACTOR
    return _mixed(_mixed(state) * _FACTOR)
