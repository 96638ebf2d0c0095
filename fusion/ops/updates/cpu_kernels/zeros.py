"""Whether memory is all zero bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as

_WORDS = ir.VectorType(ir.IntType(64), 8)
_VECTOR_BYTES = 64


def _bits_of(vectors: int) -> Any:
    """An intrinsic (address) -> the bitwise or of so many vectors there.

    Compiled loops over words gather them from addresses, which takes several times as long.
    """

    @instruction(types.int64(types.int64))
    def bits(builder: Any, address: Any) -> Any:
        result = None
        for index in range(vectors):
            offset = ir.Constant(ir.IntType(64), index * _VECTOR_BYTES)
            pointer = builder.inttoptr(builder.add(address, offset), _WORDS.as_pointer())
            vector = builder.load(pointer)
            vector.align = 4
            result = vector if result is None else builder.or_(result, vector)
        signature = ir.FunctionType(ir.IntType(64), [_WORDS])
        name = "llvm.vector.reduce.or.v8i64"
        return builder.call(
            cgutils.get_or_insert_function(builder.module, signature, name), [result]
        )

    return bits


_TOGETHER = 8
_bits_of_many, _bits_of_one = _bits_of(_TOGETHER), _bits_of(1)


@jit
def is_zero(address: int, size: int) -> bool:
    """Whether so many bytes, whole float32s, are zero."""
    end, many = address + size, _TOGETHER * _VECTOR_BYTES
    while address + many <= end:
        if _bits_of_many(address) != 0:
            return False
        address += many
    while address + _VECTOR_BYTES <= end:
        if _bits_of_one(address) != 0:
            return False
        address += _VECTOR_BYTES
    result = int64(0)
    while address < end:
        result |= int64(load_as(address, int64(0), np.int32))
        address += 4
    return result == 0
