"""Combining rows of a table into bags, with the sums in registers.

Rows are read where they lie in the table and results are written where they belong. The rows of a
bag are added in stock TensorFlow's order, so that unweighted results have the same bits: with
r = n mod 8 (0 counts as 8, 1 as 9) the first r rows one by one, then blocks of 8 rows, each block
added up on its own. Compiled code for a tile of a row (see `vectors`) handles many dimensions; a
row is one tile, or several side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion.cpu_ops.any_width import of_any_width
from fusion.cpu_ops.combine import MEAN, SUM
from fusion.cpu_ops.norms import norm_of
from fusion.cpu_ops.row_loads import RowOps, row_ops
from fusion.cpu_ops.row_tiles import AHEAD, LINE_BYTES, GatherArgs
from fusion.cpu_ops.vectors import TileOps, tile_ops
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, store_as
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.row_formats import PLAIN

#: Above this many rows stock TensorFlow divides by the count instead of multiplying by 1/count.
_MULTIPLIED = 9

#: The lines of results are asked for so many bytes of tiles before they are written.
_CLAIMED_BYTES = 512


def tile_kernel(
    stored: str, lanes: int, count: int, weighted: bool, clipped: bool, row_format: str = PLAIN
) -> Callable[[GatherArgs], None]:
    """A function `(arguments)` that combines a tile of rows of dtype `stored`, see `tiles`.

    Args:
      lanes, count: the tile.
      weighted: whether entries have weights.
      clipped: whether rows with a norm above the limit are shortened to it; of plain rows alone.
      row_format: how rows are stored, see `row_ops`.
    """
    kernel = _kernel(stored, row_format, lanes, count, weighted, clipped)
    prepare = _prepare(stored, clipped)

    def combine(args: GatherArgs) -> None:
        first, end = args.first_element, args.end_element
        if first == 0:
            prepare(args)
        kernel(args, first, end - first - lanes)

    return combine


def any_kernel(
    stored: str, weighted: bool, clipped: bool, row_format: str = PLAIN
) -> Callable[[GatherArgs], None]:
    """A function as that of `tile_kernel` for any number of elements, see `of_any_width`."""

    def kernel_of(lanes: int, count: int) -> Any:
        return _kernel(stored, row_format, lanes, count, weighted, clipped)

    by_tiles, prepare = of_any_width(stored, kernel_of), _prepare(stored, clipped)

    def combine(args: GatherArgs) -> None:
        first, end = args.first_element, args.end_element
        if first == 0:
            prepare(args)
        by_tiles(args, first, end)

    return combine


def _prepare(stored: str, clipped: bool) -> Any:
    """A jitted function (arguments) that does what comes before the first tile of rows."""
    if clipped:
        return _norms(stored)

    @jit
    def nothing(args: GatherArgs) -> None:
        pass

    return nothing


def _kernel(
    stored: str, row_format: str, lanes: int, count: int, weighted: bool, clipped: bool
) -> Any:
    """A jitted function (arguments, first element, offset of the last vector)."""
    ops, dtype = tile_ops(stored, lanes, count), DTYPES[stored].compute_type
    zero, claim, item = ops.zero, ops.claim, DTYPES[stored].item_bytes
    size = lanes * count * item
    put, bags_ahead = _put(ops, size), max(_CLAIMED_BYTES // size, 1)
    row = _row(row_ops(stored, row_format, lanes, count), dtype, clipped)
    bag = _weighted_bag(ops, row, dtype) if weighted else _bag(row, dtype)
    alone = not weighted and not clipped

    @jit
    def kernel(args: GatherArgs, element: int, last: int) -> None:
        out, step = args.out + element * item, args.out_bytes
        starts, addresses = args.bag_starts, args.row_addresses
        streamed = args.is_streamed != 0
        # Lines that go past the caches must not be fetched: then it asks for what is near anyway.
        claimed = args if streamed else out + bags_ahead * step
        claimed_step = int64(0) if streamed else step
        if alone and args.has_one_each != 0:
            for b in range(args.bag_count):
                claim(claimed)
                claimed += claimed_step
                put(out, last, row(args, addresses, b, element, last), streamed)
                out += step
            return
        for b in range(args.bag_count):
            claim(claimed)
            claimed += claimed_step
            first = starts[b]
            n = starts[b + 1] - first
            if n == 0:
                put(out, last, zero(), streamed)
            else:
                put(out, last, bag(args, first, n, element, last), streamed)
            out += step

    return kernel


def _put(ops: TileOps, size: int) -> Any:
    """A jitted function (address, last, tile, streamed) that writes a tile of `size` bytes."""
    store, stream = ops.store, ops.stream
    if size % LINE_BYTES != 0:

        @jit
        def put(address: int, last: int, tile: Any, streamed: bool) -> None:
            store(address, last, tile)
    else:

        @jit
        def put(address: int, last: int, tile: Any, streamed: bool) -> None:
            if streamed:
                stream(address, last, tile)
            else:
                store(address, last, tile)

    return put


def _row(rows: RowOps, dtype: type, clipped: bool) -> Any:
    """A jitted function (arguments, addresses, entry, element, last) -> the entry's tile."""
    load_tile, prefetch = rows.load, rows.prefetch

    if clipped:

        @jit
        def clip(args: GatherArgs, entry: int, tile: Any) -> Any:
            # The multiplication comes first and a zero row with limit 0 gives NaN, as in stock.
            bound = load_as(args.norms, entry, dtype)
            return tile * dtype(args.max_norm) / bound
    else:

        @jit
        def clip(args: GatherArgs, entry: int, tile: Any) -> Any:
            return tile

    @jit
    def row(args: GatherArgs, addresses: Words, entry: int, element: int, last: int) -> Any:
        prefetch(addresses[entry + AHEAD], element)
        return clip(args, entry, load_tile(addresses[entry], element, last))

    return row


def _bag(row: Any, dtype: type) -> Any:
    """A jitted function (arguments, first entry, n > 0, element, last) -> the bag's tile."""

    @jit
    def bag(args: GatherArgs, first: int, n: int, element: int, last: int) -> Any:
        head = n % 8
        if head < 2:
            head += 8
        addresses = args.row_addresses
        total = row(args, addresses, first, element, last)
        for k in range(first + 1, first + min(head, n)):
            total += row(args, addresses, k, element, last)
        for start in range(first + head, first + n, 8):
            block = row(args, addresses, start, element, last)
            for k in range(start + 1, start + 8):
                block += row(args, addresses, k, element, last)
            total += block
        combiner = args.combiner
        if n == 1 or combiner == SUM:
            return total
        divisor = dtype(n) if combiner == MEAN else dtype(np.sqrt(np.float64(n)))
        if n <= _MULTIPLIED:
            return total * (dtype(1) / divisor)
        return total / divisor

    return bag


def _weighted_bag(ops: TileOps, row: Any, dtype: type) -> Any:
    """A jitted function as that of `_bag`, for entries with weights."""
    zero = ops.zero

    @jit
    def divisor(args: GatherArgs, first: int, n: int) -> Any:
        weights, combiner = args.weights, args.combiner
        total = dtype(0)
        for k in range(first, first + n):
            weight = load_as(weights, k, dtype)
            total += weight if combiner == MEAN else weight * weight
        return total if combiner == MEAN else np.sqrt(total)

    @jit
    def bag(args: GatherArgs, first: int, n: int, element: int, last: int) -> Any:
        weights, addresses = args.weights, args.row_addresses
        total = zero()
        for k in range(first, first + n):
            tile = row(args, addresses, k, element, last)
            weighted = tile * load_as(weights, k, dtype)
            total += weighted
        if args.combiner == SUM:
            return total
        norm = divisor(args, first, n)
        if norm != 0:
            return total / norm
        return zero() if args.divide_no_nan != 0 else total * dtype(np.inf)

    return bag


def _norms(stored: str) -> Any:
    """A jitted function (arguments) that writes max(norm, limit) of each entry's row."""
    dtype = DTYPES[stored].compute_type
    norm = norm_of(stored)
    # Of one line, the row's first.
    prefetch = tile_ops(stored, 1, 1).prefetch

    @jit
    def measure(args: GatherArgs) -> None:
        limit = dtype(args.max_norm)
        addresses, norms = args.row_addresses, args.norms
        dim = args.dim
        for k in range(args.bag_starts[args.bag_count]):
            prefetch(addresses[k + AHEAD])
            size = norm(addresses[k], dim, dtype)
            store_as(norms, k, limit if size <= limit else size, dtype)

    return measure
