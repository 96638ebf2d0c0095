"""The row kernels of ops that combine rows, by the indices that states are built with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from fusion.cpu_ops.column_layout import AXIS, SEGMENT, SEQUENCE
from fusion.cpu_ops.kernel_indices import (
    DTYPE_COUNT,
    FIRST_FLOAT,
    FIRST_ORDERED,
    GATHER_VARIANTS,
    MAX_TILES,
    SCATTER_VARIANTS,
    TABLE_COUNT,
    ordered,
    shape_index,
)
from fusion.cpu_ops.row_tiles import tiles
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import RowKernel, RowKernels
from fusion.schema.columns import SUM_ORDERS
from fusion.schema.row_formats import PACKED_FORMATS, PLAIN

_NAMES = {dtype.code: name for name, dtype in DTYPES.items()}

#: The release of TensorFlow since which the maxima of an order are as they are now, see `folds`.
_MAX_RELEASES = {AXIS: (2, 21), SEQUENCE: (2, 22)}

#: So many variants, the first ones, have no limited norms.
_UNCLIPPED = 2


class _Shape(NamedTuple):
    """What a kernel is for; lanes and vectors are 0 for any number of elements."""

    dtype: str
    row_format: str
    lanes: int
    vectors: int

    @property
    def name(self) -> str:
        """What is a part of the names of kernels."""
        table = self.dtype if self.row_format == PLAIN else f"packed_{self.row_format}"
        return f"{table}_{f'{self.vectors}x{self.lanes}' if self.lanes else 'any'}"


def _shape(index: int) -> _Shape:
    """What an index of tables and tile is for."""
    table, tile = divmod(index, MAX_TILES)
    dtype, row_format = "float32", PLAIN
    if table < DTYPE_COUNT:
        dtype = _NAMES[table + FIRST_FLOAT]
    else:
        row_format = PACKED_FORMATS[table - DTYPE_COUNT]
    return _Shape(dtype, row_format, *((0, 0) if tile == 0 else tiles(dtype)[tile - 1]))


def _gather_at(index: int) -> RowKernel:
    shape_number, variant = divmod(index, GATHER_VARIANTS)
    shape = _shape(shape_number)
    if variant >= FIRST_ORDERED:
        return _ordered(shape, variant - FIRST_ORDERED)
    weighted, clipped = bool(variant & 1), bool(variant & 2)
    extras = ("_weighted" if weighted else "") + ("_clipped" if clipped else "")
    how = (weighted, clipped, shape.row_format)
    return _row_kernel("fusion.cpu_ops.gather", f"gather_{shape.name}{extras}", shape, how)


def _ordered(shape: _Shape, variant: int) -> RowKernel:
    """That of an order of sums other than the first."""
    (order, terms), takes_max = divmod(variant // 2, 3), bool(variant % 2)
    order += SEGMENT + 1
    extras = f"{('', '_weighted', '_less')[terms]}{'_max' if takes_max else ''}_{SUM_ORDERS[order]}"
    how: tuple[object, ...] = (terms, order, takes_max, shape.row_format)
    if takes_max and order in _MAX_RELEASES:
        how += (_release() < _MAX_RELEASES[order],)
    return _row_kernel("fusion.cpu_ops.dense.kernels", f"gather_{shape.name}{extras}", shape, how)


def _release() -> tuple[int, int]:
    """That of the running TensorFlow."""
    major, minor, _ = tf.__version__.split(".", 2)
    return int(major), int(minor)


def _scatter_at(index: int) -> RowKernel:
    shape_number, weighted = divmod(index, SCATTER_VARIANTS)
    shape = _shape(shape_number)
    name = f"scatter_{shape.name}{'_weighted' if weighted else ''}"
    return _row_kernel("fusion.cpu_ops.scatter", name, shape, (bool(weighted),))


def _row_kernel(module: str, name: str, shape: _Shape, how: tuple[object, ...]) -> RowKernel:
    """One that a factory of a module makes for a shape."""
    dtype, _, lanes, count = shape
    factory = "tile_kernel" if lanes else "any_kernel"
    sizes = (lanes, count) if lanes else ()
    return RowKernel(name, Compilation(module, factory, 1, name, (dtype, *sizes, *how)))


def any_gathers() -> list[int]:
    """The indices of those for any number of elements; of packed rows, of the first order alone."""
    orders = (len(SUM_ORDERS) - 1) * 6
    plain, packed = range(FIRST_ORDERED + orders), range(_UNCLIPPED)
    variants = {table: plain if table < DTYPE_COUNT else packed for table in range(TABLE_COUNT)}
    return [_any(table) * GATHER_VARIANTS + k for table, own in variants.items() for k in own]


def any_scatters() -> list[int]:
    """The indices of those for any number of elements."""
    variants = range(SCATTER_VARIANTS)
    return [_any(dtype) * SCATTER_VARIANTS + k for dtype in range(DTYPE_COUNT) for k in variants]


def common_gathers(dtype: str) -> list[int]:
    """The indices of those for rows of any number of elements, as most lookups combine them.

    Those are unweighted and weighted bags, and means and sums of layers; by those of older Keras
    masks are weights.
    """
    variants = (0, 1, ordered(AXIS, 0, 0), ordered(AXIS, 1, 0))
    return [index * GATHER_VARIANTS + k for index in _tiles_of(dtype) for k in variants]


def common_scatters(dtype: str) -> list[int]:
    """The indices of those for rows of any number of elements."""
    variants = range(SCATTER_VARIANTS)
    return [index * SCATTER_VARIANTS + k for index in _tiles_of(dtype) for k in variants]


def _tiles_of(dtype: str) -> Iterable[int]:
    """The indices of all tiles of plain rows, and of any number of elements."""
    return [shape_index(DTYPES[dtype].code, tile) for tile in range(1 + len(tiles(dtype)))]


def _any(table: int) -> int:
    return shape_index(table + FIRST_FLOAT, 0)


GATHERS = RowKernels("gathers", TABLE_COUNT * MAX_TILES * GATHER_VARIANTS, _gather_at)
SCATTERS = RowKernels("scatters", DTYPE_COUNT * MAX_TILES * SCATTER_VARIANTS, _scatter_at)
