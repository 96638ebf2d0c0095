"""Calls of functions of CUDA's driver, and of the launcher's, by their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _call(builder: Any, address: Any, result: Any, args: list[Any]) -> Any:
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(builder.inttoptr(address, function_type.as_pointer()), args)


@intrinsic
def driver_call(typingctx: Any, address: Any, *arguments: Any) -> Any:
    """Calls a function of the driver that takes words, and gives its result code."""
    packed = types.StarArgTuple([types.int64] * len(arguments))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [builder.extract_value(args[1], index) for index in range(len(arguments))]
        code = _call(builder, args[0], ir.IntType(32), words)
        return builder.sext(code, ir.IntType(64))

    return types.int64(types.int64, packed), codegen


def _words(context: Any, builder: Any, value: Any, numba_type: Any) -> Iterator[Any]:
    """The words of an argument of a type: of a tuple those of all its items."""
    if isinstance(numba_type, types.BaseTuple):
        for number, item in enumerate(numba_type):
            yield from _words(context, builder, builder.extract_value(value, number), item)
    else:
        yield context.cast(builder, value, numba_type, types.int64)


@intrinsic
def launch_call(
    typingctx: Any,
    address: Any,
    kernel: Any,
    blocks: Any,
    threads: Any,
    stream: Any,
    arguments: Any,
) -> Any:
    """Calls cuLaunchKernel for a kernel of 64-bit integers, and of records of them."""
    word, half = ir.IntType(64), ir.IntType(32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [*_words(context, builder, args[5], arguments)]
        values = builder.alloca(ir.ArrayType(word, max(len(words), 1)))
        pointers = builder.alloca(ir.ArrayType(word, max(len(words), 1)))
        zero = ir.Constant(half, 0)
        for number, value in enumerate(words):
            at = [zero, ir.Constant(half, number)]
            pointer = builder.gep(values, at)
            builder.store(value, pointer)
            builder.store(builder.ptrtoint(pointer, word), builder.gep(pointers, at))
        one, none = ir.Constant(half, 1), ir.Constant(word, 0)
        grid = [builder.trunc(args[2], half), one, one]
        block = [builder.trunc(args[3], half), one, one]
        packed = builder.ptrtoint(pointers, word)
        parameters = [args[1], *grid, *block, zero, args[4], packed, none]
        return builder.sext(_call(builder, args[0], half, parameters), word)

    i64 = types.int64
    return i64(i64, i64, i64, i64, i64, arguments), codegen
