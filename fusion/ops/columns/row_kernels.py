"""The row kernels of the ops for whole columns, by the indices that states are built with."""

from __future__ import annotations

from fusion.cpu_ops.column_layout import SEGMENT
from fusion.cpu_ops.row_tiles import tiles
from fusion.ops.cpu.columns.kernel_indices import (
    DTYPE_COUNT,
    FIRST_FLOAT,
    FIRST_ORDERED,
    GATHER_VARIANTS,
    MOST_TILES,
    SCATTER_VARIANTS,
    shape_index,
)
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import RowKernel, RowKernels
from fusion.schema.columns import SUM_ORDERS

_NAMES = {dtype.code: name for name, dtype in DTYPES.items()}


def _shape(index: int) -> tuple[str, int, int, str]:
    """The dtype of an index of dtype and tile, its lanes and vectors, 0 for any, and their name."""
    code, tile = divmod(index, MOST_TILES)
    dtype = _NAMES[code + FIRST_FLOAT]
    lanes, count = (0, 0) if tile == 0 else tiles(dtype)[tile - 1]
    return dtype, lanes, count, f"{count}x{lanes}" if lanes else "any"


def _gather_at(index: int) -> RowKernel:
    shape, variant = divmod(index, GATHER_VARIANTS)
    dtype, lanes, count, shape_name = _shape(shape)
    if variant >= FIRST_ORDERED:
        return _ordered(dtype, lanes, count, shape_name, variant - FIRST_ORDERED)
    weighted, clipped = bool(variant & 1), bool(variant & 2)
    extras = ("_weighted" if weighted else "") + ("_clipped" if clipped else "")
    name = f"gather_{dtype}_{shape_name}{extras}"

    def compile_it() -> bytes:
        from fusion.cpu_ops import gather
        from fusion.runtime.native.compiler import compile_object

        if lanes:
            kernel = gather.tile_kernel(dtype, lanes, count, weighted, clipped)
        else:
            kernel = gather.any_kernel(dtype, weighted, clipped)
        return compile_object(kernel, 1, name)

    return RowKernel(name, compile_it)


def _ordered(dtype: str, lanes: int, count: int, shape_name: str, variant: int) -> RowKernel:
    """That of an order of sums other than the first."""
    (order, terms), takes_max = divmod(variant // 2, 3), bool(variant % 2)
    order += SEGMENT + 1
    extras = f"{('', '_weighted', '_less')[terms]}{'_max' if takes_max else ''}_{SUM_ORDERS[order]}"
    name = f"gather_{dtype}_{shape_name}{extras}"

    def compile_it() -> bytes:
        from fusion.cpu_ops.dense import kernels
        from fusion.runtime.native.compiler import compile_object

        how = terms, order, takes_max
        if lanes:
            kernel = kernels.tile_kernel(dtype, lanes, count, *how)
        else:
            kernel = kernels.any_kernel(dtype, *how)
        return compile_object(kernel, 1, name)

    return RowKernel(name, compile_it)


def _scatter_at(index: int) -> RowKernel:
    shape, weighted = divmod(index, SCATTER_VARIANTS)
    dtype, lanes, count, shape_name = _shape(shape)
    name = f"scatter_{dtype}_{shape_name}{'_weighted' if weighted else ''}"

    def compile_it() -> bytes:
        from fusion.cpu_ops import scatter
        from fusion.runtime.native.compiler import compile_object

        if lanes:
            kernel = scatter.tile_kernel(dtype, lanes, count, bool(weighted))
        else:
            kernel = scatter.any_kernel(dtype, bool(weighted))
        return compile_object(kernel, 1, name)

    return RowKernel(name, compile_it)


def any_gathers() -> list[int]:
    """The indices of those for any number of elements."""
    orders = (len(SUM_ORDERS) - 1) * 6
    variants = range(FIRST_ORDERED + orders)
    return [_any(dtype) * GATHER_VARIANTS + k for dtype in range(DTYPE_COUNT) for k in variants]


def any_scatters() -> list[int]:
    """The indices of those for any number of elements."""
    variants = range(SCATTER_VARIANTS)
    return [_any(dtype) * SCATTER_VARIANTS + k for dtype in range(DTYPE_COUNT) for k in variants]


def _any(dtype: int) -> int:
    return shape_index(dtype + FIRST_FLOAT, 0)


GATHERS = RowKernels("gathers", DTYPE_COUNT * MOST_TILES * GATHER_VARIANTS, _gather_at)
SCATTERS = RowKernels("scatters", DTYPE_COUNT * MOST_TILES * SCATTER_VARIANTS, _scatter_at)
