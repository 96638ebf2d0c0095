"""Which kernels combine the rows of a table, and their arguments.

This module needs no Numba, so that kernels can be chosen without it; `gather` has the kernels.
"""

from __future__ import annotations

from functools import cache

from fusion.runtime.cache import processor
from fusion.runtime.layout import Address, Flag, Float64, Int64, Layout, Words
from fusion.runtime.tensorflow.dtypes import DTYPES


class GatherArgs(Layout):
    """The arguments of a kernel that combines rows.

    Weights and norms are of the compute dtype.
    """

    bag_count: Int64
    row_addresses: Words  # of each entry, int64, with `AHEAD` more behind
    bag_starts: Words  # where each bag's entries start, int64 [bags + 1]
    out: Address  # of the first result
    out_bytes: Int64  # from one result to the next
    dim: Int64
    combiner: Int64
    weights: Address
    norms: Address  # workspace for the norm of each entry's row
    max_norm: Float64
    divide_no_nan: Flag
    is_rounded_once: Flag  # see `ColumnAttrs`
    has_one_each: Flag  # whether each bag has one entry
    is_streamed: Flag  # whether results go past the caches
    first_element: Int64  # of the tile
    end_element: Int64
    divisors: Address  # of each bag that is added up over an axis, of the compute dtype
    first_row: Int64  # of the bags, among those of all results
    all_rows: Int64  # of all results


#: Rows are asked for so many entries ahead.
AHEAD = 32

#: What is streamed must be whole lines of so many bytes.
LINE_BYTES = 64


@cache
def _vector_bytes(target: processor.Processor) -> int:
    return 64 if target.has("avx512f") else 32


def tiles(stored: str) -> list[tuple[int, int]]:
    """(lanes, vectors) of the kernels for a dtype, in the order in which they are asked.

    With one vector a kernel takes exactly that many elements, else up to their product.
    """
    widest = _vector_bytes(processor.target()) // DTYPES[stored].compute_bytes
    shapes = [(1, 1)]
    lanes = 1
    while lanes < widest:
        lanes *= 2
        shapes += [(lanes, 1), (lanes // 2, 2)]
    # The sums of a bag and of a block of it fit the registers.
    return shapes + [(widest, count) for count in range(2, 9)]


def max_elements(stored: str) -> int:
    """The most that one tile has. Longer rows are several side by side."""
    lanes, count = tiles(stored)[-1]
    return lanes * count
