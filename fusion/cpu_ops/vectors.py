"""Vectors of compile-time length in compiled code: a row, or a tile of one, in registers.

A *tile* is `count` vectors of `lanes` elements. It stands for any number of elements in (lanes *
(count - 1), lanes * count], because the last vector may overlap the one before it: it is loaded,
computed and stored at an offset that is known only at run time, and what two vectors have in common
gets the same value twice. So there are no masks, no scalar tails and few kernels.

Elements are stored as float32, float64, or as the bits of a half type, and computed in float32 or
float64. Addresses are 64-bit integers.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel, register_default
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic

from fusion.cpu_ops.column_layout import LIMIT_BLOCK
from fusion.runtime.native.instruction import instruction
from fusion.runtime.tensorflow.dtypes import DTYPES

_WORD = ir.IntType(64)
_LINE = 64
_COMPUTED: dict[str, tuple[Any, Any]] = {
    "float32": (types.float32, ir.FloatType()),
    "float64": (types.float64, ir.DoubleType()),
}


def _compute(stored: str) -> tuple[Any, Any]:
    """The types, Numba's and LLVM's, in which elements of dtype `stored` are computed."""
    return _COMPUTED[DTYPES[stored].compute]


class TileType(types.Type):
    """The Numba type of a tile: `count` vectors of `lanes` elements of a float type."""

    def __init__(self, element: Any, lanes: int, count: int) -> None:
        self.element, self.lanes, self.count = element, lanes, count
        super().__init__(f"tile({element}, {lanes} x {count})")


@register_default(TileType)
class _TileModel(PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: TileType) -> None:
        element = ir.FloatType() if fe_type.element == types.float32 else ir.DoubleType()
        be_type = ir.ArrayType(ir.VectorType(element, fe_type.lanes), fe_type.count)
        super().__init__(dmm, fe_type, be_type)


class _Arithmetic(AbstractTemplate):
    """An operator between tiles, or between one and a number."""

    def generic(self, args: Any, kws: Any) -> Any:
        tile_types = {tile_type for tile_type in args if isinstance(tile_type, TileType)}
        if len(tile_types) != 1 or len(args) != 2:
            return None
        (tile_type,) = tile_types
        fits = all(arg in (tile_type, tile_type.element) for arg in args)
        return signature(tile_type, *args) if fits else None


def _define(operation: Any, instruction: str) -> None:
    """Makes an operator do what an LLVM instruction does to each vector."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        tile_type = sig.return_type
        array = context.get_value_type(tile_type)

        def side(place: int, index: int) -> Any:
            if isinstance(sig.args[place], TileType):
                return builder.extract_value(args[place], index)
            return splat(builder, args[place], array.element)

        result = ir.Constant(array, ir.Undefined)
        for index in range(tile_type.count):
            value = getattr(builder, instruction)(side(0, index), side(1, index))
            result = builder.insert_value(result, value, index)
        return result

    infer_global(operation)(type(operation.__name__, (_Arithmetic,), {"key": operation}))
    for operand_types in ((TileType, TileType), (TileType, types.Float), (types.Float, TileType)):
        lower_builtin(operation, *operand_types)(codegen)


_define(operator.add, "fadd")
_define(operator.iadd, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")


def _larger(*, keeps_nan: bool) -> Any:
    @instruction(lambda tile, other: tile(tile, other))
    def larger(builder: Any, tile: Any, other: Any) -> Any:
        result = ir.Constant(tile.type, ir.Undefined)
        for index in range(tile.type.count):
            one, another = (builder.extract_value(each, index) for each in (tile, other))
            value = builder.select(builder.fcmp_ordered(">", one, another), one, another)
            if keeps_nan:
                # Another value than `one`, so that LLVM does not merge the two selects: that above
                # is one instruction, which may take denormals for zeros, as in stock.
                has_nan = builder.fcmp_unordered("uno", one, another)
                value = builder.select(has_nan, builder.fadd(one, another), value)
            result = builder.insert_value(result, value, index)
        return result

    return larger


#: (tile, other) -> of each pair of elements the larger one, the other's where they are equal or one
#: is NaN; or NaN if one is.
larger, larger_or_nan = _larger(keeps_nan=False), _larger(keeps_nan=True)


def rounder(stored: str) -> Any:
    """An intrinsic (tile) -> its elements rounded to dtype `stored`, if that is not computed in."""

    @instruction(lambda tile: tile(tile))
    def rounded(builder: Any, tile: Any) -> Any:
        result = tile
        for index in range(tile.type.count if DTYPES[stored].is_widened else 0):
            value = builder.extract_value(tile, index)
            value = _widened(builder, _narrowed(builder, value, stored), stored, value.type)
            result = builder.insert_value(result, value, index)
        return result

    return rounded


class TileOps(NamedTuple):
    """Intrinsics on tiles; `last` is the offset of the last vector in elements.

    Attributes:
      load: (address, last) -> the tile at an address.
      store: (address, last, tile) -> None; rounds half types to nearest even.
      stream: as `store`, past the caches, for an address and a size in whole lines; a `fence` must
        follow before another thread reads it.
      zero: () -> zeros.
      prefetch: (address) -> None; asks for the lines of a tile to be brought near.
      claim: (address) -> None; asks for the lines of a tile that will be written.
    """

    load: Any
    store: Any
    stream: Any
    zero: Any
    prefetch: Any
    claim: Any


@cache
def tile_ops(stored: str, lanes: int, count: int) -> TileOps:
    """The intrinsics for tiles of `count` vectors of `lanes` elements stored as dtype `stored`."""
    make = _Maker(stored, lanes, count)
    return TileOps(
        load=make.load(),
        store=make.store(is_streamed=False),
        stream=make.store(is_streamed=True),
        zero=make.zero(),
        prefetch=make.prefetch(for_writing=False),
        claim=make.prefetch(for_writing=True),
    )


class _Maker:
    """Makes the intrinsics for one type of tiles."""

    def __init__(self, stored: str, lanes: int, count: int) -> None:
        self.stored, self.lanes, self.count = stored, lanes, count
        self.element, compute = _compute(stored)
        self.tile_type = TileType(self.element, lanes, count)
        self.vector = ir.VectorType(compute, lanes)
        self.array = ir.ArrayType(self.vector, count)
        self.size = DTYPES[stored].item_bytes

    def vector_address(self, builder: Any, address: Any, last: Any, index: int) -> Any:
        """The address of one of the vectors; the last may overlap the one before it."""
        if index < self.count - 1 or self.count == 1:
            return builder.add(address, ir.Constant(_WORD, index * self.lanes * self.size))
        return builder.add(address, builder.mul(last, ir.Constant(_WORD, self.size)))

    def load(self) -> Any:
        @instruction(self.tile_type(types.int64, types.int64))
        def load(builder: Any, address: Any, last: Any) -> Any:
            result = ir.Constant(self.array, ir.Undefined)
            for index in range(self.count):
                source = self.vector_address(builder, address, last, index)
                value = _load(builder, source, self.stored, self.vector)
                result = builder.insert_value(result, value, index)
            return result

        return load

    def store(self, *, is_streamed: bool) -> Any:
        @instruction(types.void(types.int64, types.int64, self.tile_type))
        def store(builder: Any, address: Any, last: Any, tile: Any) -> None:
            for index in range(self.count):
                value = builder.extract_value(tile, index)
                target = self.vector_address(builder, address, last, index)
                written = _store(builder, value, target, self.stored, self.vector)
                if is_streamed:
                    _bypass_caches(builder, written, self.lanes * self.size)

        return store

    def zero(self) -> Any:
        @instruction(self.tile_type())
        def zero(builder: Any) -> Any:
            return ir.Constant(self.array, None)

        return zero

    def prefetch(self, *, for_writing: bool) -> Any:
        size = self.lanes * self.count * self.size
        level = 3 if for_writing else prefetch_level(size)

        @instruction(types.void(types.int64))
        def prefetch(builder: Any, address: Any) -> None:
            for offset in range(0, size, _LINE):
                line = builder.add(address, ir.Constant(_WORD, offset))
                emit_prefetch(builder, line, for_writing, level)

        return prefetch


def prefetch_level(size: int) -> int:
    """How near so many bytes of a row are brought, as LLVM counts: 3 is the first level of caches.

    Loads into the first level wait in a few buffers that other loads need: long rows come as far
    as the second level.
    """
    return 3 if size <= _LINE else 2


#: Sums of squares that are added up in parallel.
SUMS = 8
_SUMS = TileType(types.float64, SUMS, 1)
_DOUBLES = ir.VectorType(ir.DoubleType(), SUMS)


@instruction(_SUMS())
def no_squares(builder: Any) -> Any:
    """() -> sums of no squares."""
    return ir.Constant(ir.ArrayType(_DOUBLES, 1), None)


def square_adder(stored: str = "") -> Any:
    """An intrinsic (sums, address, place, dtype) -> the sums, of `SUMS` elements more.

    These start at that place of a row, and are stored as `stored`, or as dtype if that is "".
    """

    @intrinsic
    def add_squares(typingctx: Any, sums: Any, address: Any, place: Any, dtype: Any) -> Any:
        dtype_name = stored or str(dtype.dtype)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            offset = builder.mul(args[2], ir.Constant(_WORD, DTYPES[dtype_name].item_bytes))
            vector = ir.VectorType(_compute(dtype_name)[1], SUMS)
            values = _load(builder, builder.add(args[1], offset), dtype_name, vector)
            if DTYPES[dtype_name].compute != "float64":
                values = builder.fpext(values, _DOUBLES)
            before = builder.extract_value(args[0], 0)
            after = builder.fadd(before, builder.fmul(values, values))
            return builder.insert_value(args[0], after, 0)

        return _SUMS(_SUMS, types.int64, types.int64, dtype), codegen

    return add_squares


@instruction(types.float64(_SUMS))
def sum_of(builder: Any, sums: Any) -> Any:
    """The total of the sums, each half added to the other."""
    vector = builder.extract_value(sums, 0)
    lane = ir.IntType(32)
    terms = [builder.extract_element(vector, lane(index)) for index in range(SUMS)]
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [builder.fadd(a, b) for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


def limit_counter(stored: str) -> Any:
    """An intrinsic (value, address) -> how many of `LIMIT_BLOCK` limits are not above a value.

    Limits are float32 and are compared as values of dtype `stored`. For NaN it is all of them.
    """
    element, compute = _compute(stored)
    limits = ir.VectorType(ir.FloatType(), LIMIT_BLOCK)
    wide, bits = ir.VectorType(compute, LIMIT_BLOCK), ir.IntType(LIMIT_BLOCK)

    @instruction(types.int64(element, types.int64))
    def count(builder: Any, value: Any, address: Any) -> Any:
        pointer = builder.inttoptr(address, limits.as_pointer())
        loaded = unaligned(builder.load(pointer), 4)
        if compute == ir.DoubleType():
            loaded = builder.fpext(loaded, wide)
        below = builder.fcmp_unordered("uge", splat(builder, value, wide), loaded)
        return builder.zext(builder.ctpop(builder.bitcast(below, bits)), _WORD)

    return count


def splat(builder: Any, number: Any, vector: Any) -> Any:
    """In code generation: a vector of one number."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, undefined, mask)


def integers(value: int, vector: Any) -> Any:
    """In code generation: a constant vector of one integer."""
    return ir.Constant(vector, [value] * vector.count)


def _load(builder: Any, address: Any, stored: str, vector: Any) -> Any:
    if not DTYPES[stored].is_widened:
        loaded = builder.load(builder.inttoptr(address, vector.as_pointer()))
        return unaligned(loaded, DTYPES[stored].item_bytes)
    halves = ir.VectorType(ir.IntType(16), vector.count)
    bits = unaligned(builder.load(builder.inttoptr(address, halves.as_pointer())), 2)
    return _widened(builder, bits, stored, vector)


def _store(builder: Any, value: Any, address: Any, stored: str, vector: Any) -> Any:
    if not DTYPES[stored].is_widened:
        written = builder.store(value, builder.inttoptr(address, vector.as_pointer()))
        return unaligned(written, DTYPES[stored].item_bytes)
    bits = _narrowed(builder, value, stored)
    written = builder.store(bits, builder.inttoptr(address, bits.type.as_pointer()))
    return unaligned(written, 2)


def _widened(builder: Any, bits: Any, stored: str, vector: Any) -> Any:
    """The float32s of the bits of half types."""
    if stored == "float16":
        half = builder.bitcast(bits, ir.VectorType(ir.HalfType(), vector.count))
        return builder.fpext(half, vector)
    words = ir.VectorType(ir.IntType(32), vector.count)
    return builder.bitcast(builder.shl(builder.zext(bits, words), integers(16, words)), vector)


def _narrowed(builder: Any, value: Any, stored: str) -> Any:
    """The bits of the nearest elements of a half type."""
    halves = ir.VectorType(ir.IntType(16), value.type.count)
    if stored == "float16":
        narrow = builder.fptrunc(value, ir.VectorType(ir.HalfType(), value.type.count))
        return builder.bitcast(narrow, halves)
    return _rounded_to_bfloat16(builder, value, value.type, halves)


def _rounded_to_bfloat16(builder: Any, value: Any, vector: Any, halves: Any) -> Any:
    """The upper halves of float32s, rounded to nearest even; a NaN stays one."""
    words = ir.VectorType(ir.IntType(32), vector.count)
    bits = builder.bitcast(value, words)
    upper = builder.lshr(bits, integers(16, words))
    odd = builder.and_(upper, integers(1, words))
    rounded = builder.add(builder.add(bits, integers(0x7FFF, words)), odd)
    rounded = builder.lshr(rounded, integers(16, words))
    quiet = builder.or_(upper, integers(0x40, words))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, rounded), halves)


def unaligned(instruction: Any, alignment: int) -> Any:
    """In code generation: a load or a store, of memory that is aligned to so many bytes."""
    instruction.align = alignment
    return instruction


def _bypass_caches(builder: Any, store: Any, size: int) -> None:
    one = ir.Constant(ir.IntType(32), 1)
    store.set_metadata("nontemporal", builder.module.add_metadata([one]))
    store.align = min(size, _LINE)


@instruction(types.void())
def fence(builder: Any) -> None:
    """() -> None; what was streamed before is seen before anything that is written after."""
    builder.fence("seq_cst")


@instruction(types.void(types.int64))
def prefetch_line(builder: Any, address: Any) -> None:
    """(address) -> None; prefetches a line."""
    emit_prefetch(builder, address, False, 3)


def emit_prefetch(builder: Any, address: Any, for_writing: bool, level: int) -> None:
    """In code generation: prefetches a line into a level of caches."""
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    number = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number]),
        "llvm.prefetch.p0",
    )
    arguments = [ir.Constant(number, value) for value in (int(for_writing), level, 1)]
    builder.call(function, [pointer, *arguments])
