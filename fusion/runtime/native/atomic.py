"""Words that several threads read and write, in compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.memory import word_pointer

_i64 = types.int64
_ORDER = "seq_cst"


@instruction(_i64(_i64, _i64))
def atomic_load(builder: Any, address: Any, index: Any) -> Any:
    """The word at `index` of the array at `address`."""
    return builder.load_atomic(word_pointer(builder, address, index), _ORDER, 8)


@instruction(types.void(_i64, _i64, _i64))
def atomic_store(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Sets the word at `index` of the array at `address`."""
    builder.store_atomic(value, word_pointer(builder, address, index), _ORDER, 8)


@instruction(_i64(_i64, _i64, _i64))
def atomic_add(builder: Any, address: Any, index: Any, value: Any) -> Any:
    """Adds to a word; returns its old value."""
    return builder.atomic_rmw("add", word_pointer(builder, address, index), value, _ORDER)


@instruction(_i64(_i64, _i64, _i64))
def atomic_max(builder: Any, address: Any, index: Any, value: Any) -> Any:
    """Sets a word to the maximum of itself and `value`; returns its old value."""
    return builder.atomic_rmw("max", word_pointer(builder, address, index), value, _ORDER)


@instruction(_i64(_i64, _i64, _i64))
def atomic_swap(builder: Any, address: Any, index: Any, value: Any) -> Any:
    """Sets a word; returns its old value."""
    return builder.atomic_rmw("xchg", word_pointer(builder, address, index), value, _ORDER)


@instruction(types.boolean(_i64, _i64, _i64, _i64))
def atomic_swap_if(builder: Any, address: Any, index: Any, old: Any, new: Any) -> Any:
    """Sets a word to `new` if it is `old`; returns whether it was."""
    pointer = word_pointer(builder, address, index)
    return builder.extract_value(builder.cmpxchg(pointer, old, new, _ORDER, _ORDER), 1)


@instruction(types.void())
def keep_order(builder: Any) -> None:
    """A fence for the compiler alone; the processor keeps the order of loads."""
    builder.fence(_ORDER, targetscope="singlethread")


def _control_register(name: str) -> Any:
    """An intrinsic on the processor's floating-point modes, in the 32 bits at an address."""

    @instruction(types.void(_i64))
    def access(builder: Any, address: Any) -> None:
        pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
        fn_type = ir.FunctionType(ir.VoidType(), [pointer.type])
        function = cgutils.get_or_insert_function(builder.module, fn_type, f"llvm.x86.sse.{name}")
        builder.call(function, [pointer])

    return access


#: Writes the modes of this thread to an address, and sets them from there: rounding, and whether
#: denormals count as zeros.
read_float_modes = _control_register("stmxcsr")
set_float_modes = _control_register("ldmxcsr")
