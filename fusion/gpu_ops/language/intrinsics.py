"""What device code uses beyond Python: memory by address, atomics, exact arithmetic.

`simulated` has the same functions for Numba's CUDA simulator. Addresses are 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, cudadecl, cudaimpl, extending, typeconv, types
from numba.cuda.extending import intrinsic, typeof_impl
from numba.cuda.typing import templates

from fusion.runtime.layout import LayoutType
from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.typed_pointers import Numba, define
from fusion.runtime.tensorflow.dtypes import DTYPES

_i64 = types.int64
_WORD = ir.IntType(64)
_GLOBAL = 1  # the address space of device memory

cuda_instruction = partial(instruction, intrinsic=intrinsic)

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """A device function: one for use in kernels."""
    result: F = cuda.jit(device=True)(function)
    return result


@typeof_impl.register(LayoutType)
def _typeof_layout(layout: LayoutType, context: Any) -> Any:
    """As for the CPU, see `fusion.runtime.native.memory`."""
    return types.Module(layout)


def _pointer(builder: Any, address: Any, index: Any, element_type: Any, size: int) -> Any:
    byte = builder.add(address, builder.mul(index, ir.Constant(_WORD, size)))
    return builder.inttoptr(byte, ir.PointerType(element_type, addrspace=_GLOBAL))


def _element_pointer(builder: Any, context: Any, address: Any, index: Any, dtype: Any) -> Any:
    element_type = context.get_data_type(dtype)
    return _pointer(builder, address, index, element_type, context.get_abi_sizeof(element_type))


@intrinsic
def load_as(typingctx: Any, address: Any, index: Any, dtype: Any) -> Any:
    """The element `index` of an array of `dtype` at an address; nothing is checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_element_pointer(builder, context, args[0], args[1], dtype.dtype))

    return dtype.dtype(_i64, _i64, dtype), codegen


@intrinsic
def store_as(typingctx: Any, address: Any, index: Any, value: Any, dtype: Any) -> Any:
    """Sets the element `index` of an array of `dtype` at an address; nothing is checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _element_pointer(builder, context, args[0], args[1], dtype.dtype))
        return context.get_dummy_value()

    return types.void(_i64, _i64, dtype.dtype, dtype), codegen


@cuda_instruction(_i64(_i64, _i64))
def load(builder: Any, address: Any, index: Any) -> Any:
    """The word at `index` words from `address`."""
    return builder.load(_pointer(builder, address, index, _WORD, 8))


@cuda_instruction(types.void(_i64, _i64, _i64))
def store(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Sets the word at `index` words from `address`."""
    builder.store(value, _pointer(builder, address, index, _WORD, 8))


def _word_pointer(builder: Any, address: Any, index: Any) -> Any:
    return _pointer(builder, address, index, _WORD, 8)


POINTERS = define(
    Numba(
        types,
        extending.models,
        extending.register_model,
        templates,
        typeconv.Conversion,
        cudadecl.registry.register_attr,
        cudadecl.registry.register_global,
        cudaimpl.registry.lower,
        cudaimpl.registry.lower_getattr_generic,
        cudaimpl.registry.lower_setattr_generic,
        cudaimpl.registry.lower_cast,
        intrinsic,
        _word_pointer,
    )
)

#: As those of `fusion.runtime.native.pointers`.
as_record, as_words = POINTERS.as_record, POINTERS.as_words


@cuda_instruction(types.float64(_i64))
def as_float(builder: Any, word: Any) -> Any:
    """The double whose bits are `word`."""
    return builder.bitcast(word, ir.DoubleType())


def _atomic(operation: str) -> Any:
    @intrinsic
    def atomic(typingctx: Any, address: Any, index: Any, value: Any, dtype: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _element_pointer(builder, context, args[0], args[1], dtype.dtype)
            return builder.atomic_rmw(operation, pointer, args[2], "monotonic")

        return dtype.dtype(_i64, _i64, dtype.dtype, dtype), codegen

    return atomic


#: (address, index, value, dtype) -> the integer that was there; adds to it.
atomic_add = _atomic("add")
#: As `atomic_add`; leaves the smaller integer there.
atomic_min = _atomic("min")


@cuda_instruction(_i64(_i64, _i64, _i64, _i64))
def compare_and_swap(builder: Any, address: Any, index: Any, old: Any, new: Any) -> Any:
    """Sets a word to `new` if it is `old`; returns what it was."""
    pointer = _pointer(builder, address, index, _WORD, 8)
    return builder.extract_value(builder.cmpxchg(pointer, old, new, "monotonic", "monotonic"), 0)


@jit
def bit_count(word: int) -> int:
    """How many bits of a word are ones."""
    return cuda.popc(word)


@jit
def publish() -> None:
    """What was written before is seen before what is written next, by the host, too."""
    cuda.threadfence_system()


# --- vectors --------------------------------------------------------------------------------

_COMPUTED: dict[str, tuple[Any, Any]] = {
    "float32": (types.float32, ir.FloatType()),
    "float64": (types.float64, ir.DoubleType()),
}
#: LLVM's types of elements in memory that are computed in a wider one.
_WIDENED = {"float16": ir.HalfType(), "bfloat16": ir.IntType(16)}


def _types(stored: str) -> tuple[Any, Any, Any]:
    """The types of computed elements, Numba's and LLVM's, and LLVM's of those in memory."""
    element, compute = _COMPUTED[DTYPES[stored].compute]
    return element, compute, _WIDENED.get(stored, compute)


def _vector_pointer(builder: Any, address: Any, stored: Any, lanes: int) -> Any:
    pointer = ir.PointerType(ir.VectorType(stored, lanes), addrspace=_GLOBAL)
    return builder.inttoptr(address, pointer)


def vector_loader(stored: str, lanes: int) -> Any:
    """An intrinsic (address) -> a tuple of `lanes` elements of dtype `stored`, computed in float.

    The address is a multiple of their bytes. They are read in one go.
    """
    element, compute, in_memory = _types(stored)

    @cuda_instruction(types.UniTuple(element, lanes)(_i64))
    def load_vector(builder: Any, address: Any) -> Any:
        pointer = _vector_pointer(builder, address, in_memory, lanes)
        vector = builder.load(pointer, align=lanes * DTYPES[stored].item_bytes)
        values = []
        for lane in range(lanes):
            value = builder.extract_element(vector, ir.Constant(ir.IntType(32), lane))
            values.append(_widened(builder, value, stored, compute))
        return cgutils.pack_array(builder, values)

    return load_vector


def _widened(builder: Any, value: Any, stored: str, compute: Any) -> Any:
    if stored == "float16":
        return builder.fpext(value, compute)
    if stored == "bfloat16":
        bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(bits, compute)
    return value


def vector_storer(stored: str, lanes: int) -> Any:
    """An intrinsic (address, tuple) that writes `lanes` elements, rounded to dtype `stored`."""
    element, _, in_memory = _types(stored)

    @cuda_instruction(types.void(_i64, types.UniTuple(element, lanes)))
    def store_vector(builder: Any, address: Any, values: Any) -> None:
        vector = ir.Constant(ir.VectorType(in_memory, lanes), ir.Undefined)
        for lane in range(lanes):
            value = _narrowed(builder, builder.extract_value(values, lane), stored)
            vector = builder.insert_element(vector, value, ir.Constant(ir.IntType(32), lane))
        pointer = _vector_pointer(builder, address, in_memory, lanes)
        builder.store(vector, pointer, align=lanes * DTYPES[stored].item_bytes)

    return store_vector


def _narrowed(builder: Any, value: Any, stored: str) -> Any:
    if stored == "float16":
        return builder.fptrunc(value, ir.HalfType())
    if stored != "bfloat16":
        return value
    # To nearest even; a NaN stays one.
    word = ir.IntType(32)
    bits = builder.bitcast(value, word)
    odd = builder.and_(builder.lshr(bits, ir.Constant(word, 16)), ir.Constant(word, 1))
    rounded = builder.add(bits, builder.add(odd, ir.Constant(word, 0x7FFF)))
    quiet = builder.or_(bits, ir.Constant(word, 0x400000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    chosen = builder.select(is_nan, quiet, rounded)
    return builder.trunc(builder.lshr(chosen, ir.Constant(word, 16)), ir.IntType(16))


def rounded(builder: Any, operation: str, *operands: Any) -> Any:
    """An operation that is rounded on its own: no product is fused with the sum that takes it."""
    if operation == "div":
        return builder.fdiv(*operands)
    operand_type = operands[0].type
    suffix = "f" if operand_type == ir.FloatType() else "d"
    function = ir.FunctionType(operand_type, [operand_type] * len(operands))
    name = f"llvm.nvvm.{operation}.rn.{suffix}"
    known = builder.module.globals.get(name)
    return builder.call(known or ir.Function(builder.module, function, name), operands)


def _elementwise(operation: str) -> Any:
    def signature(values: Any, others: Any) -> Any:
        return values(values, values if isinstance(others, types.UniTuple) else values.dtype)

    @cuda_instruction(signature)
    def apply(builder: Any, values: Any, others: Any) -> Any:
        results = []
        for lane in range(values.type.count):
            a, is_tuple = builder.extract_value(values, lane), values.type == others.type
            b = builder.extract_value(others, lane) if is_tuple else others
            results.append(rounded(builder, operation, a, b))
        return cgutils.pack_array(builder, results)

    return apply


def _word_from_lane(builder: Any, word: Any, lane: Any) -> Any:
    """A 32-bit integer of another thread of the warp; see the NVVM IR's "Data Movement"."""
    i32 = ir.IntType(32)
    result = ir.LiteralStructType([i32, ir.IntType(1)])
    name = "llvm.nvvm.shfl.sync.i32"
    known = builder.module.globals.get(name)
    function = known or ir.Function(builder.module, ir.FunctionType(result, [i32] * 5), name)
    whole, by_index, last = ir.Constant(i32, -1), ir.Constant(i32, 0), ir.Constant(i32, 31)
    values = builder.call(function, [whole, by_index, word, lane, last])
    return builder.extract_value(values, 0)


def _number_from_lane(builder: Any, value: Any, lane: Any) -> Any:
    i32 = ir.IntType(32)
    if value.type == ir.FloatType():
        word = _word_from_lane(builder, builder.bitcast(value, i32), lane)
        return builder.bitcast(word, value.type)
    bits = builder.bitcast(value, _WORD)
    half = ir.Constant(_WORD, 32)
    low = _word_from_lane(builder, builder.trunc(bits, i32), lane)
    high = _word_from_lane(builder, builder.trunc(builder.lshr(bits, half), i32), lane)
    both = builder.or_(builder.zext(low, _WORD), builder.shl(builder.zext(high, _WORD), half))
    return builder.bitcast(both, value.type)


@cuda_instruction(lambda values, lane: values(values, _i64))
def from_lane(builder: Any, values: Any, lane: Any) -> Any:
    """The tuple that another thread of the warp passes, by its lane.

    All threads of the warp call it together.
    """
    lane = builder.trunc(lane, ir.IntType(32))
    own = [builder.extract_value(values, k) for k in range(values.type.count)]
    return cgutils.pack_array(builder, [_number_from_lane(builder, value, lane) for value in own])


@jit
def any_in_warp(is_so: bool) -> bool:
    """Whether a flag is set in any thread of the warp; all threads call it together."""
    return cuda.any_sync(0xFFFFFFFF, is_so)


#: (tuple, tuple or number) -> a tuple; each element is rounded on its own.
added, multiplied, divided = map(_elementwise, ("add", "mul", "div"))
