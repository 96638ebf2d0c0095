"""Tiles of rows in registers, from tables of any row format.

Rows that are stored in fewer bits, see `fusion.schema.row_formats`, become float32 as they are
read. Nothing else differs: what is computed of a tile is computed in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from fusion.cpu_ops.row_tiles import LINE_BYTES
from fusion.cpu_ops.vectors import (
    TileType,
    emit_prefetch,
    integers,
    prefetch_level,
    splat,
    tile_ops,
    unaligned,
)
from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.jit import jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.row_formats import HALF_FORMATS, HEADER_BYTES, PLAIN

_WORD, _BYTE, _FLOAT = ir.IntType(64), ir.IntType(8), ir.FloatType()


class RowOps(NamedTuple):
    """Functions in compiled code on tiles of a row at an address; `first` is a tile's element.

    Attributes:
      load: (address, first, last) -> the tile, `last` as in `TileOps`.
      prefetch: (address, first) -> None; asks for what `load` reads.
    """

    load: Any
    prefetch: Any


@cache
def row_ops(stored: str, row_format: str, lanes: int, count: int) -> RowOps:
    """The `RowOps` for tiles of `count` vectors of `lanes` elements.

    Args:
      stored: the dtype of the table, float32 if its rows are packed.
      row_format: one of ROW_FORMATS. Tiles of int4 have an even number of lanes and begin at even
        elements, or have a single element.
    """
    if row_format == PLAIN:
        return _as_dtype(stored, lanes, count)
    if row_format in HALF_FORMATS:
        return _as_dtype(row_format, lanes, count)
    return RowOps(_load(row_format, lanes, count), _prefetch(row_format, lanes * count))


def _as_dtype(stored: str, lanes: int, count: int) -> RowOps:
    """The `RowOps` for unpacked rows of one of the dtypes."""
    ops, item = tile_ops(stored, lanes, count), DTYPES[stored].item_bytes
    load_tile, prefetch_tile = ops.load, ops.prefetch

    @jit
    def load(row: int, first: int, last: int) -> Any:
        return load_tile(row + first * item, last)

    @jit
    def prefetch(row: int, first: int) -> None:
        prefetch_tile(row + first * item)

    return RowOps(load, prefetch)


def _load(row_format: str, lanes: int, count: int) -> Any:
    """An intrinsic that loads a tile of quantized numbers and applies scale and offset."""
    tile_type, vector = TileType(types.float32, lanes, count), ir.VectorType(_FLOAT, lanes)
    words = ir.VectorType(ir.IntType(32), lanes)
    numbers_at = _bytes if row_format == "int8" else _halves

    @instruction(tile_type(types.int64, types.int64, types.int64))
    def load(builder: Any, row: Any, first: Any, last: Any) -> Any:
        scale, offset = (
            splat(builder, _number(builder, row, place, _FLOAT, 4), vector) for place in (0, 4)
        )
        result = ir.Constant(ir.ArrayType(vector, count), ir.Undefined)
        for index in range(count):
            is_last = 0 < index == count - 1
            place = last if is_last else ir.Constant(_WORD, index * lanes)
            numbers = numbers_at(builder, row, builder.add(first, place), lanes, is_last)
            value = builder.sitofp(builder.zext(numbers, words), vector)
            # Two instructions, which round twice, as `unpack_rows` does.
            value = builder.fadd(builder.fmul(value, scale), offset)
            result = builder.insert_value(result, value, index)
        return result

    return load


def _number(builder: Any, address: Any, place: Any, number_type: Any, alignment: int) -> Any:
    """Loads a number, or a vector, at a byte offset from an address."""
    place = ir.Constant(_WORD, place) if isinstance(place, int) else place
    pointer = builder.inttoptr(builder.add(address, place), number_type.as_pointer())
    return unaligned(builder.load(pointer), alignment)


def _bytes(builder: Any, row: Any, first: Any, lanes: int, is_last: bool) -> Any:
    """The numbers of so many elements, a byte each."""
    del is_last
    place = builder.add(first, ir.Constant(_WORD, HEADER_BYTES))
    return _number(builder, row, place, ir.VectorType(_BYTE, lanes), 1)


def _halves(builder: Any, row: Any, first: Any, lanes: int, is_last: bool) -> Any:
    """The numbers of so many elements, half a byte each.

    An element with an odd number is the upper half of a byte. Only the last of several vectors, or
    a single element, may begin with one.
    """
    one, header = ir.Constant(_WORD, 1), ir.Constant(_WORD, HEADER_BYTES)
    numbers = builder.add(row, header)
    is_odd = builder.trunc(first, ir.IntType(1))
    if lanes == 1:
        byte = _number(builder, numbers, builder.lshr(first, one), ir.VectorType(_BYTE, 1), 1)
        return builder.select(is_odd, _upper(builder, byte), _lower(builder, byte))
    pairs = ir.VectorType(_BYTE, lanes // 2)
    byte = _number(builder, numbers, builder.lshr(first, one), pairs, 1)
    even, odd = _lower(builder, byte), _upper(builder, byte)
    if is_last:
        # The same bytes, or the next: what is read ends with the last element's byte.
        place = builder.lshr(builder.add(first, one), one)
        next_even = _lower(builder, _number(builder, numbers, place, pairs, 1))
        even, odd = builder.select(is_odd, odd, even), builder.select(is_odd, next_even, odd)
    mask = [lane // 2 + lane % 2 * (lanes // 2) for lane in range(lanes)]
    order = ir.Constant(ir.VectorType(ir.IntType(32), lanes), mask)
    return builder.shuffle_vector(even, odd, order)


def _lower(builder: Any, pairs: Any) -> Any:
    return builder.and_(pairs, integers(15, pairs.type))


def _upper(builder: Any, pairs: Any) -> Any:
    return builder.lshr(pairs, integers(4, pairs.type))


def _prefetch(row_format: str, elements: int) -> Any:
    """Prefetches scale, offset and a tile of numbers, on all cache lines of a row."""
    size = elements if row_format == "int8" else (elements + 1) // 2
    level, halved = prefetch_level(size), int(row_format == "int4")

    @instruction(types.void(types.int64, types.int64))
    def prefetch(builder: Any, row: Any, first: Any) -> None:
        emit_prefetch(builder, row, False, level)
        numbers = builder.add(row, builder.lshr(first, ir.Constant(_WORD, halved)))
        for place in sorted({*range(0, size, LINE_BYTES), size - 1}):
            line = builder.add(numbers, ir.Constant(_WORD, HEADER_BYTES + place))
            emit_prefetch(builder, line, False, level)

    return prefetch
