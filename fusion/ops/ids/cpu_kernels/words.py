"""Words without sign, and products and rotations of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.jit import inlined
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import half_at, word_at

_i64, _u64 = types.int64, types.uint64

#: A word without sign, of a constant or another word.
Word: Any = np.uint64


@instruction(_u64(_i64))
def unsigned(builder: Any, value: Any) -> Any:
    """The same bits without sign."""
    return value


@instruction(_i64(_u64))
def signed(builder: Any, value: Any) -> Any:
    """The same bits with sign."""
    return value


@instruction(_u64(_u64, _u64))
def high_product(builder: Any, one: Any, other: Any) -> Any:
    """The upper word of a product."""
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(one, wide), builder.zext(other, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))


@inlined
def word(at: int) -> Any:
    """The 8 bytes at an address."""
    return unsigned(word_at(at))


@inlined
def half(at: int) -> Any:
    """The 4 bytes at an address."""
    return unsigned(half_at(at))


@inlined
def one_byte(at: int) -> Any:
    """The byte at an address."""
    return unsigned(byte(at))


@inlined
def rotated_right(value: Any, bits: int) -> Any:
    """A word, rotated by 1 to 63 bits."""
    return (value >> Word(bits)) | (value << Word(64 - bits))


@inlined
def rotated_left(value: Any, bits: int) -> Any:
    """A word, rotated by 1 to 63 bits."""
    return (value << Word(bits)) | (value >> Word(64 - bits))


@inlined
def remainder(value: Any, divisor: Any, reciprocal: Any) -> Any:
    """`value % divisor`, where `reciprocal` is (2**64 - 1) // divisor.

    The quotient by the reciprocal is too small by two at most.
    """
    rest = value - high_product(value, reciprocal) * divisor
    if rest >= divisor:
        rest -= divisor
    if rest >= divisor:
        rest -= divisor
    return rest
