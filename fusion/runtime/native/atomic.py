"""Words that several threads read and write, in compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion.runtime.native.memory import word_pointer

_i64 = types.int64
_ORDER = "seq_cst"


@intrinsic
def atomic_load(typingctx: Any, address: Any, index: Any) -> Any:
    """The word `index` words behind `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(word_pointer(builder, *args), _ORDER, 8)

    return _i64(_i64, _i64), codegen


@intrinsic
def atomic_store(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Sets the word `index` words behind `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], word_pointer(builder, args[0], args[1]), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(_i64, _i64, _i64), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Adds to a word; the result is what it was before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = word_pointer(builder, args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], _ORDER)

    return _i64(_i64, _i64, _i64), codegen


@intrinsic
def atomic_swap(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Sets a word; the result is what it was before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = word_pointer(builder, args[0], args[1])
        return builder.atomic_rmw("xchg", place, args[2], _ORDER)

    return _i64(_i64, _i64, _i64), codegen


@intrinsic
def atomic_swap_if(typingctx: Any, address: Any, index: Any, old: Any, new: Any) -> Any:
    """Sets a word to `new` if it is `old`; the result says whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = word_pointer(builder, args[0], args[1])
        pair = builder.cmpxchg(place, args[2], args[3], _ORDER, _ORDER)
        return builder.extract_value(pair, 1)

    return types.boolean(_i64, _i64, _i64, _i64), codegen


def _control_register(name: str) -> Any:
    """An intrinsic on the processor's floating-point modes, in the 32 bits at an address."""

    @intrinsic
    def access(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [pointer.type])
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{name}")
            builder.call(function, [pointer])
            return context.get_dummy_value()

        return types.void(_i64), codegen

    return access


#: Writes the modes of this thread to an address, and sets them from there: rounding, and whether
#: denormals count as zeros.
read_float_modes = _control_register("stmxcsr")
set_float_modes = _control_register("ldmxcsr")
