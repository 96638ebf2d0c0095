"""Raw memory in compiled code: words, stack and typed pointers. Addresses are 64-bit integers.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, typeof_impl

from fusion.runtime.layout import LayoutType
from fusion.runtime.native.instruction import instruction

_i64 = types.int64


@typeof_impl.register(LayoutType)
def _typeof_layout(layout: LayoutType, context: Any) -> Any:
    """A layout as Numba sees it: as a module, whose attributes are constants."""
    return types.Module(layout)


#: (bytes) -> the address of memory of the process, to be freed; 0 if there is none.
c_malloc = types.ExternalFunction("malloc", _i64(_i64))
c_free = types.ExternalFunction("free", types.void(_i64))

c_memcpy = types.ExternalFunction("memcpy", _i64(_i64, _i64, _i64))
c_memcmp = types.ExternalFunction("memcmp", types.int32(_i64, _i64, _i64))
c_memset = types.ExternalFunction("memset", _i64(_i64, types.int32, _i64))


@instruction(_i64(_i64, _i64))
def load(builder: Any, address: Any, index: Any) -> Any:
    """The word at `index` of the array at `address`."""
    return builder.load(word_pointer(builder, address, index))


@instruction(types.void(_i64, _i64, _i64))
def store(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Sets the word at `index` of the array at `address`."""
    builder.store(value, word_pointer(builder, address, index))


def word_pointer(builder: Any, address: Any, index: Any) -> Any:
    """In code generation: a pointer to the word at `index` of the array at `address`."""
    word = ir.IntType(64)
    if isinstance(index, int):
        index = ir.Constant(word, index)
    byte = builder.add(address, builder.shl(index, ir.Constant(word, 3)))
    return builder.inttoptr(byte, ir.IntType(64).as_pointer())


@intrinsic
def pointer(typingctx: Any, address: Any, dtype: Any) -> Any:
    """`address` as a pointer to `dtype`."""
    result = types.CPointer(dtype.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(_i64, dtype), codegen


@instruction(types.float64(_i64))
def as_float(builder: Any, word: Any) -> Any:
    """The double whose bits are `word`."""
    return builder.bitcast(word, ir.DoubleType())


@intrinsic
def load_as(typingctx: Any, address: Any, index: Any, dtype: Any) -> Any:
    """The element `index` of an array of `dtype` at an address; nothing is checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_element_pointer(builder, args[0], args[1], dtype.dtype, context))

    return dtype.dtype(_i64, _i64, dtype), codegen


@intrinsic
def store_as(typingctx: Any, address: Any, index: Any, value: Any, dtype: Any) -> Any:
    """Sets the element `index` of an array of `dtype` at an address; nothing is checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _element_pointer(builder, args[0], args[1], dtype.dtype, context))
        return context.get_dummy_value()

    return types.void(_i64, _i64, dtype.dtype, dtype), codegen


def _element_pointer(builder: Any, address: Any, index: Any, dtype: Any, context: Any) -> Any:
    element_type = context.get_data_type(dtype)
    size = ir.Constant(ir.IntType(64), context.get_abi_sizeof(element_type))
    byte = builder.add(address, builder.mul(index, size))
    return builder.inttoptr(byte, element_type.as_pointer())


@intrinsic
def call_at(typingctx: Any, address: Any, *arguments: Any) -> Any:
    """Calls the C function `int64 f(int64...)` at an address; ignore the result of a void one."""
    packed = types.StarArgTuple([_i64] * len(arguments))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        function_type = ir.FunctionType(word, [word] * len(packed))
        values = [builder.extract_value(args[1], k) for k in range(len(packed))]
        return builder.call(builder.inttoptr(args[0], function_type.as_pointer()), values)

    return _i64(_i64, packed), codegen
