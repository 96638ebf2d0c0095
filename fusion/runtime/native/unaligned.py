"""Words, parts of words and bits of memory at addresses of any alignment, in compiled code.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fusion.runtime.native.instruction import instruction

_i64 = types.int64
_WORD = ir.IntType(64)


def _at(builder: Any, address: Any, bits: int) -> Any:
    value = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()))
    value.align = 1
    return value


@instruction(_i64(_i64))
def word_at(builder: Any, address: Any) -> Any:
    """The 8 bytes at an address."""
    return _at(builder, address, 64)


@instruction(_i64(_i64))
def half_at(builder: Any, address: Any) -> Any:
    """The 4 bytes at an address, without sign."""
    return builder.zext(_at(builder, address, 32), _WORD)


@instruction(_i64(_i64))
def top_bits_at(builder: Any, address: Any) -> Any:
    """The top bits of the 32 bytes at an address, as those of a number."""
    vector = ir.VectorType(ir.IntType(8), 32)
    items = builder.load(builder.inttoptr(address, vector.as_pointer()))
    items.align = 1
    negative = builder.icmp_signed("<", items, ir.Constant(vector, None))
    return builder.zext(builder.bitcast(negative, ir.IntType(32)), _WORD)


@instruction(types.void(_i64, _i64))
def put_word(builder: Any, address: Any, value: Any) -> None:
    """Sets the 8 bytes at an address."""
    builder.store(value, builder.inttoptr(address, _WORD.as_pointer())).align = 1


@instruction(types.void(_i64, _i64))
def put_half(builder: Any, address: Any, value: Any) -> None:
    """Sets the 4 bytes at an address."""
    half = ir.IntType(32)
    stored = builder.store(builder.trunc(value, half), builder.inttoptr(address, half.as_pointer()))
    stored.align = 1


@instruction(types.void(_i64, _i64))
def put_byte(builder: Any, address: Any, value: Any) -> None:
    """Sets the byte at an address."""
    kind = ir.IntType(8)
    builder.store(builder.trunc(value, kind), builder.inttoptr(address, kind.as_pointer()))


@instruction(_i64(_i64, _i64))
def shifted_right(builder: Any, value: Any, bits: Any) -> Any:
    """A word shifted to the right, zeros in front; by less than 64 bits."""
    return builder.lshr(value, bits)


@instruction(_i64(_i64))
def low_zeros(builder: Any, value: Any) -> Any:
    """How many of the lowest bits are zeros."""
    return builder.cttz(value, ir.Constant(ir.IntType(1), 0))


@instruction(_i64(_i64))
def ones(builder: Any, value: Any) -> Any:
    """How many bits are ones."""
    return builder.ctpop(value)


@instruction(_i64(_i64, _i64))
def folded_product(builder: Any, one: Any, other: Any) -> Any:
    """The two words of a product without sign, combined by exclusive or."""
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(one, wide), builder.zext(other, wide))
    high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _WORD)
    return builder.xor(builder.trunc(product, _WORD), high)
