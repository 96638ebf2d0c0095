"""Operations on tiles (see `fusion.cpu_ops.vectors`) as stock's elementwise ops compute them.

Where stock's results depend on where in a tensor an element is, they are those of whole vectors:
the maximum and the minimum of zeros of both signs are the second operand, the sign of NaN is NaN
without its sign, and the reciprocal of a root of float32 is the processor's estimate after a step
of Newton's method.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fusion.runtime.native.instruction import instruction


def _by_vector(builder: Any, build: Any, *tiles: Any) -> Any:
    """The tile of what a function (builder, *vectors) makes of the vectors of tiles."""
    result = ir.Constant(tiles[0].type, ir.Undefined)
    for index in range(tiles[0].type.count):
        vectors = [builder.extract_value(tile, index) for tile in tiles]
        result = builder.insert_value(result, build(builder, *vectors), index)
    return result


def _unary(build: Any) -> Any:
    """An intrinsic (tile) -> tile."""

    @instruction(lambda tile: tile(tile))
    def operation(builder: Any, tile: Any) -> Any:
        return _by_vector(builder, build, tile)

    return operation


def _selected(comparison: str) -> Any:
    """An intrinsic (tile, other) -> the elements that compare so, or NaN where either is."""

    def choose(builder: Any, left: Any, right: Any) -> Any:
        chosen = builder.select(builder.fcmp_ordered(comparison, left, right), left, right)
        # Another value than `left`, so that LLVM does not merge the two selects, see `vectors`.
        has_nan = builder.fcmp_unordered("uno", left, right)
        return builder.select(has_nan, builder.fadd(left, right), chosen)

    @instruction(lambda left, right: left(left, right))
    def operation(builder: Any, left: Any, right: Any) -> Any:
        return _by_vector(builder, choose, left, right)

    return operation


def _call(builder: Any, name: str, vector: Any) -> Any:
    bits = 32 if vector.type.element == ir.FloatType() else 64
    signature = ir.FunctionType(vector.type, [vector.type])
    name = f"llvm.{name}.v{vector.type.count}f{bits}"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [vector])


def _reciprocal_root(builder: Any, vector: Any) -> Any:
    def number(value: float) -> Any:
        return ir.Constant(vector.type, [value] * vector.type.count)

    if vector.type.element != ir.FloatType():
        return builder.fdiv(number(1.0), _call(builder, "sqrt", vector))
    estimate = _estimated_reciprocal_root(builder, vector)
    # Rounded after each operation, as by TensorFlow's builds, which have no FMA.
    error = builder.fadd(builder.fmul(builder.fmul(vector, estimate), estimate), number(-1.0))
    better = builder.fadd(builder.fmul(builder.fmul(estimate, number(-0.5)), error), estimate)
    # Of zero, infinity and what is below zero the estimate is exact.
    return builder.select(builder.fcmp_unordered("uno", better, better), estimate, better)


def _estimated_reciprocal_root(builder: Any, vector: Any) -> Any:
    """The instruction's results, of as many elements as there are by vectors of 8."""
    count, whole = vector.type.count, ir.VectorType(ir.FloatType(), 8)
    signature = ir.FunctionType(whole, [whole])
    estimate = cgutils.get_or_insert_function(
        builder.module, signature, "llvm.x86.avx.rsqrt.ps.256"
    )
    parts = [
        builder.call(estimate, [_elements(builder, vector, range(first, first + 8), count)])
        for first in range(0, count, 8)
    ]
    if len(parts) == 1:
        return _elements(builder, parts[0], range(count), 8)
    return _elements(builder, parts[0], range(count), 8, parts[1])


def _elements(
    builder: Any, vector: Any, indices: Iterable[int], count: int, other: Any = None
) -> Any:
    """The vector of some elements of a vector, and of the next one; the last in place of more."""
    last = (count if other is None else 2 * count) - 1
    mask = [ir.Constant(ir.IntType(32), min(index, last)) for index in indices]
    if other is None:
        other = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(
        vector, other, ir.Constant(ir.VectorType(ir.IntType(32), len(mask)), mask)
    )


def _sign(builder: Any, vector: Any) -> Any:
    zero, one, minus = (
        ir.Constant(vector.type, [number] * vector.type.count) for number in (0.0, 1.0, -1.0)
    )
    size = _call(builder, "fabs", vector)
    signed = builder.select(builder.fcmp_ordered("<", vector, zero), minus, one)
    return builder.select(builder.fcmp_ordered("<", zero, size), signed, size)


@instruction(lambda tile, number: tile(tile, number))
def filled(builder: Any, tile: Any, number: Any) -> Any:
    """A tile like that one whose elements are all a number."""

    def fill(builder: Any, vector: Any) -> Any:
        first = builder.insert_element(vector, number, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.type.count), None)
        return builder.shuffle_vector(first, ir.Constant(vector.type, ir.Undefined), mask)

    return _by_vector(builder, fill, tile)


def _words_like(vector: Any, bits: int) -> Any:
    return ir.VectorType(ir.IntType(bits), vector.count)


@instruction(lambda marks, tile, other: tile(types.int64, tile, other))
def where_marked(builder: Any, marks: Any, tile: Any, other: Any) -> Any:
    """The elements of a tile of one vector where the int32 at an address are -1, another's where 0.

    By bits: of a choice LLVM makes a store with a mask, which takes AMD's processors ten times as
    long as all else here.
    """
    vector = tile.type.element
    loaded = builder.load(builder.inttoptr(marks, _words_like(vector, 32).as_pointer()))
    loaded.align = 4
    words = _words_like(vector, 32 if vector.element == ir.FloatType() else 64)
    mask = loaded if loaded.type == words else builder.sext(loaded, words)

    def choose(builder: Any, one: Any, another: Any) -> Any:
        one, another = (builder.bitcast(each, words) for each in (one, another))
        changes = builder.and_(builder.xor(one, another), mask)
        return builder.bitcast(builder.xor(another, changes), vector)

    return _by_vector(builder, choose, tile, other)


#: (tile, tile) -> tile.
larger, smaller = _selected(">"), _selected("<")
#: (tile) -> tile.
negative = _unary(lambda builder, vector: builder.fneg(vector))
square = _unary(lambda builder, vector: builder.fmul(vector, vector))
root = _unary(lambda builder, vector: _call(builder, "sqrt", vector))
reciprocal_root = _unary(_reciprocal_root)
absolute = _unary(lambda builder, vector: _call(builder, "fabs", vector))
sign = _unary(_sign)
