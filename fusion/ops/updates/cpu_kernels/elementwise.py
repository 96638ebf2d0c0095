"""Elementwise instructions: loops over vectors of contiguous elements."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from fusion.cpu_ops.row_tiles import tiles
from fusion.cpu_ops.vectors import tile_ops
from fusion.ops.updates.cpu_kernels import layout, tile_math
from fusion.ops.updates.cpu_kernels.tile_math import filled
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.tensorflow.dtypes import DTYPES

#: Vectors of a step of a loop, beside whose work that of the loop itself is little.
_UNROLLED = 4

_BINARY: dict[str, Any] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "max": tile_math.larger,
    "min": tile_math.smaller,
}
_UNARY: dict[str, Any] = {
    "neg": tile_math.negative,
    "square": tile_math.square,
    "sqrt": tile_math.root,
    "rsqrt": tile_math.reciprocal_root,
    "abs": tile_math.absolute,
    "sign": tile_math.sign,
}

#: (stored, lanes, vectors) -> a jitted function (out, left, right, offset in bytes) that does a
#: step of a loop; the arguments are addresses.
Step = Callable[[str, int, int], Any]


def elementwise(stored: str) -> list[tuple[int, Any]]:
    """(opcode, jitted function (out, left, right, elements)) of all elementwise instructions."""
    steps = {
        code + shape: _binary(_BINARY[name], shape)
        for name, code in layout.BINARY_CODES.items()
        for shape in (layout.VECTORS, layout.VECTOR_SCALAR, layout.SCALAR_VECTOR)
    }
    steps |= {code: _unary(_UNARY[name]) for name, code in layout.UNARY_CODES.items()}
    steps |= {layout.COPY: _copy, layout.FILL: _fill}
    return [(code, _loop(stored, step)) for code, step in steps.items()]


def _loop(stored: str, step: Step) -> Any:
    """A jitted function (out, left, right, elements)."""
    lanes, item = tiles(stored)[-1][0], DTYPES[stored].item_bytes
    by_tile, by_vector = step(stored, lanes, _UNROLLED), step(stored, lanes, 1)
    by_element = step(stored, 1, 1)
    vector_bytes, tile_bytes = lanes * item, lanes * _UNROLLED * item

    @jit
    def loop(out: int, left: int, right: int, elements: int) -> None:
        end, offset = elements * item, int64(0)
        while offset + tile_bytes <= end:
            by_tile(out, left, right, offset)
            offset += tile_bytes
        while offset + vector_bytes <= end:
            by_vector(out, left, right, offset)
            offset += vector_bytes
        while offset < end:
            by_element(out, left, right, offset)
            offset += item

    return loop


def _binary(operation: Any, shape: int) -> Step:
    def step(stored: str, lanes: int, count: int) -> Any:
        ops, last, dtype = tile_ops(stored, lanes, count), lanes * (count - 1), _type(stored)
        load_tile, store_tile, zero = ops.load, ops.store, ops.zero

        @jit
        def of_vectors(out: int, left: int, right: int, offset: int) -> None:
            value = operation(load_tile(left + offset, last), load_tile(right + offset, last))
            store_tile(out + offset, last, value)

        @jit
        def of_vector_and_scalar(out: int, left: int, right: int, offset: int) -> None:
            number = filled(zero(), load_as(right, int64(0), dtype))
            store_tile(out + offset, last, operation(load_tile(left + offset, last), number))

        @jit
        def of_scalar_and_vector(out: int, left: int, right: int, offset: int) -> None:
            number = filled(zero(), load_as(left, int64(0), dtype))
            store_tile(out + offset, last, operation(number, load_tile(right + offset, last)))

        return (of_vectors, of_vector_and_scalar, of_scalar_and_vector)[shape]

    return step


def _unary(operation: Any) -> Step:
    def step(stored: str, lanes: int, count: int) -> Any:
        ops, last = tile_ops(stored, lanes, count), lanes * (count - 1)
        load_tile, store_tile = ops.load, ops.store

        @jit
        def of_vector(out: int, left: int, right: int, offset: int) -> None:
            store_tile(out + offset, last, operation(load_tile(left + offset, last)))

        return of_vector

    return step


def _copy(stored: str, lanes: int, count: int) -> Any:
    ops, last = tile_ops(stored, lanes, count), lanes * (count - 1)
    load_tile, store_tile = ops.load, ops.store

    @jit
    def copy(out: int, left: int, right: int, offset: int) -> None:
        store_tile(out + offset, last, load_tile(left + offset, last))

    return copy


def _fill(stored: str, lanes: int, count: int) -> Any:
    ops, last, dtype = tile_ops(stored, lanes, count), lanes * (count - 1), _type(stored)
    store_tile, zero = ops.store, ops.zero

    @jit
    def fill(out: int, left: int, right: int, offset: int) -> None:
        store_tile(out + offset, last, filled(zero(), load_as(left, int64(0), dtype)))

    return fill


def _type(stored: str) -> Any:
    return DTYPES[stored].compute_type
