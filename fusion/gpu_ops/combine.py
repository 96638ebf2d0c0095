"""Combining rows of tables into bags, all columns of a call in one launch.

A few threads compute a bag, from one to a warp: each has its own elements of the result, 16 bytes of
them if they lie right, and goes through the entries of the bag in their order. So nothing is added up
across threads, and the sums are those of the CPU (`fusion.cpu_ops.combine`), in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion.cpu_ops.column_words import (
    COLUMN_WORDS,
    COMBINER,
    COPY,
    DEFAULT_ID,
    DEFAULT_WEIGHT,
    FILL,
    FORM,
    IDS,
    IDS_KIND,
    ID_COUNT,
    IGNORED,
    INDICES,
    MAX_NORM,
    NO_NAN,
    PRUNE,
    ROWS,
    ROWS_KIND,
    ROW_BYTES,
    ROW_IDS,
    ROW_STEP,
    SOURCE_WORDS,
    TABLE,
    TABLE_DIM,
    TABLE_KIND,
    TABLE_ROWS,
    USE_IGNORED,
    WEIGHTED,
    WEIGHTS,
)
from fusion.cpu_ops.pieces import ITEM_BYTES
from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops.device import (
    added,
    as_float,
    compare_and_swap,
    cuda,
    divided,
    jit,
    load,
    multiplied,
    store,
    vector_loader,
    vector_storer,
)
from fusion.gpu_ops.elements import (
    element_range,
    id_at,
    integer_at,
    is_dropped,
    is_ignored,
    weight_at,
)

SUM, MEAN = range(2)  # as in fusion.cpu_ops.combine
#: Above this many rows stock TensorFlow divides by the count instead of multiplying by 1/count.
_MULTIPLIED = 9
_SUMS = 8  # of squares, side by side, as in fusion.cpu_ops.norms


@jit
def tell(call: int, kind: int, place: int, element: int, number: int) -> None:
    """Tells of trouble; the first that is told stays."""
    trouble = load(call, call_of.TROUBLE)
    if compare_and_swap(trouble, call_of.KIND, 0, kind) == 0:
        store(trouble, call_of.COLUMN, place)
        store(trouble, call_of.ELEMENT, element)
        store(trouble, call_of.NUMBER, number)


@jit
def _is_of_row(column: int, source: int, k: int, row: int) -> bool:
    """Whether an element belongs to a row; to any if that is negative."""
    if row < 0:
        return True
    rows, step = load(source, ROWS), load(source, ROW_STEP)
    return integer_at(rows, k * step, load(column, ROWS_KIND)) == row


@jit
def _plain_id(column: int, source: int, k: int, first: int) -> int:
    return integer_at(load(source, IDS), k, load(column, IDS_KIND))


@jit
def _plain_counts(column: int, source: int, number: int, k: int) -> bool:
    if load(column, USE_IGNORED) != 0 and number == load(column, IGNORED):
        return False
    return number >= 0 or load(column, PRUNE) == 0


@jit
def _counts(column: int, source: int, number: int, k: int) -> bool:
    return not is_ignored(column, source, k) and not is_dropped(column, source, number, k)


def _norm(stored: str, dtype: type) -> Any:
    """A device function (address, dim) -> the norm of a row, as fusion.cpu_ops.norms has it."""
    load_one, item = vector_loader(stored, 1), ITEM_BYTES[stored]

    @jit
    def norm(address: int, dim: int) -> Any:
        sums = cuda.local.array(_SUMS, np.float64)
        for k in range(_SUMS):
            sums[k] = 0.0
        whole = dim - dim % _SUMS
        for first in range(0, whole, _SUMS):
            for k in range(_SUMS):
                value = np.float64(load_one(address + (first + k) * item)[0])
                sums[k] = added((sums[k],), multiplied((value,), value))[0]
        half = _SUMS // 2
        while half > 0:
            for k in range(half):
                sums[k] += sums[k + half]
            half //= 2
        total = sums[0]
        for k in range(whole, dim):
            value = np.float64(load_one(address + k * item)[0])
            total = added((total,), multiplied((value,), value))[0]
        return dtype(math.sqrt(dtype(total)))

    return norm


def _bag(stored: str, lanes: int, is_plain: bool) -> Any:
    """A device function that computes `lanes` elements of a bag at a time.

    (call, column's place, bag, thread of the bag, threads of a bag) -> None
    """
    id_of, counts = (_plain_id, _plain_counts) if is_plain else (id_at, _counts)
    dtype: type = np.float64 if stored == "float64" else np.float32
    item = ITEM_BYTES[stored]
    load_vector, store_vector = vector_loader(stored, lanes), vector_storer(stored, lanes)
    zero = (dtype(0),) * lanes
    norm, nan = _norm(stored, dtype), dtype(np.nan)

    @jit
    def clipped(row: int, dim: int, limit: float, values: Any) -> Any:
        if is_plain or limit < 0:
            return values
        # The multiplication comes first and a zero row with limit 0 gives NaN, as in stock.
        size, bound = norm(row, dim), dtype(limit)
        return divided(multiplied(values, bound), bound if size <= bound else size)

    @jit
    def row_of(call: int, place: int, source: int, k: int, number: int) -> int:
        """The address of an element's row; 0, and trouble, for an id that is not in the table."""
        if number < 0 or number >= load(source, TABLE_ROWS):
            tell(call, call_of.BAD_ID, place, k, number)
            return np.int64(0)
        return load(source, TABLE) + number * load(source, ROW_BYTES)

    @jit
    def normalized(total: Any, combiner: int, n: int) -> Any:
        if n == 1 or combiner == SUM:
            return total
        divisor = dtype(n) if combiner == MEAN else dtype(math.sqrt(np.float64(n)))
        if n <= _MULTIPLIED:
            return multiplied(total, dtype(1) / divisor)
        return divided(total, divisor)

    @jit
    def weighted_mean(total: Any, combiner: int, no_nan: bool, sum_of_weights: Any) -> Any:
        if combiner == SUM:
            return total
        divisor = sum_of_weights if combiner == MEAN else dtype(math.sqrt(sum_of_weights))
        if divisor != 0:
            return divided(total, divisor)
        return zero if no_nan else multiplied(total, dtype(np.inf))

    @jit
    def plain_row(source: int, kind: int, k: int) -> Any:
        """The address of an element's row, or else of the table's first; whether it has one."""
        number = integer_at(load(source, IDS), k, kind)
        is_sound = 0 <= number < load(source, TABLE_ROWS)
        return load(source, TABLE) + (number if is_sound else 0) * load(source, ROW_BYTES), is_sound

    @jit
    def plain_bag(column: int, source: int, start: int, end: int, at: int) -> Any:
        """What a bag of at least one element gives if it is plain, and whether all of them count."""
        n, kind = end - start, load(column, IDS_KIND)
        head = n % 8
        if head < 2:
            head = min(head + 8, n)
        row, is_sound = plain_row(source, kind, start)
        total = load_vector(row + at)
        for k in range(start + 1, start + head):
            row, counts = plain_row(source, kind, k)
            total, is_sound = added(total, load_vector(row + at)), is_sound and counts
        for first in range(start + head, end, 8):
            # Eight rows are on their way at the same time.
            r0, s0 = plain_row(source, kind, first)
            r1, s1 = plain_row(source, kind, first + 1)
            r2, s2 = plain_row(source, kind, first + 2)
            r3, s3 = plain_row(source, kind, first + 3)
            r4, s4 = plain_row(source, kind, first + 4)
            r5, s5 = plain_row(source, kind, first + 5)
            r6, s6 = plain_row(source, kind, first + 6)
            r7, s7 = plain_row(source, kind, first + 7)
            v0, v1, v2, v3 = (
                load_vector(r0 + at),
                load_vector(r1 + at),
                load_vector(r2 + at),
                load_vector(r3 + at),
            )
            v4, v5, v6, v7 = (
                load_vector(r4 + at),
                load_vector(r5 + at),
                load_vector(r6 + at),
                load_vector(r7 + at),
            )
            is_sound = is_sound and s0 and s1 and s2 and s3 and s4 and s5 and s6 and s7
            block = added(added(added(v0, v1), v2), v3)
            block = added(added(added(added(block, v4), v5), v6), v7)
            total = added(total, block)
        return normalized(total, load(column, COMBINER), n), is_sound

    @jit
    def any_bag(
        call: int, place: int, column: int, source: int, start: int, end: int, at: int, row: int
    ) -> Any:
        """What the entries of a bag give; `row` is theirs if they are among others, or -1."""
        weighted, n = not is_plain and load(column, WEIGHTED) != 0, 0
        for k in range(start, end):
            number = id_of(column, source, k, k - start)
            if _is_of_row(column, source, k, row) and counts(column, source, number, k):
                n += 1
        if n == 0:
            return filler(call, place, column, source, at)
        head = n % 8
        if head < 2:
            head += 8
        limit, dim = as_float(load(column, MAX_NORM)), load(source, TABLE_DIM)
        combiner, kind = load(column, COMBINER), load(source, TABLE_KIND)
        total, block, seen, is_sound = zero, zero, 0, True
        divisor = dtype(0)
        for k in range(start, end):
            number = id_of(column, source, k, k - start)
            if not (_is_of_row(column, source, k, row) and counts(column, source, number, k)):
                continue
            address = row_of(call, place, source, k, number)
            if address == 0:
                is_sound = False
                continue
            values = clipped(address, dim, limit, load_vector(address + at))
            if weighted:
                weight = dtype(weight_at(load(source, WEIGHTS), k, kind))
                total = added(total, multiplied(values, weight))
                term = weight if combiner == MEAN else multiplied((weight,), weight)[0]
                divisor = added((divisor,), term)[0]
            elif seen < head:
                total = values if seen == 0 else added(total, values)
            else:
                block = values if (seen - head) % 8 == 0 else added(block, values)
                if (seen - head) % 8 == 7:
                    total = added(total, block)
            seen += 1
        if not is_sound:
            return multiplied(total, nan)
        if weighted:
            return weighted_mean(total, combiner, load(column, NO_NAN) != 0, divisor)
        return normalized(total, combiner, n)

    @jit
    def filler(call: int, place: int, column: int, source: int, at: int) -> Any:
        """What a row without entries gives."""
        if load(column, FILL) == 0:
            return zero
        number = max(load(column, DEFAULT_ID), np.int64(0))
        if number >= load(source, TABLE_ROWS):
            tell(call, call_of.BAD_DEFAULT, place, np.int64(-1), number)
            return multiplied(zero, nan)
        if load(column, DEFAULT_ID) < 0:
            return zero
        row = load(source, TABLE) + number * load(source, ROW_BYTES)
        limit, dim = as_float(load(column, MAX_NORM)), load(source, TABLE_DIM)
        values = clipped(row, dim, limit, load_vector(row + at))
        if is_plain or load(column, WEIGHTED) == 0:
            return values
        weight, combiner = dtype(as_float(load(column, DEFAULT_WEIGHT))), load(column, COMBINER)
        term = weight if combiner == MEAN else weight * weight
        total = added(zero, multiplied(values, weight))
        return weighted_mean(total, combiner, load(column, NO_NAN) != 0, term)

    @jit
    def elements(call: int, place: int, column: int, source: int, bag: int, at: int) -> Any:
        form = load(column, FORM)
        if form == COPY:
            return load_vector(load(source, TABLE) + bag * load(source, ROW_BYTES) + at)
        by_row = form == INDICES or form == ROW_IDS
        if by_row and load(load(call, call_of.UNSORTED), place) != 0:
            count = load(source, ID_COUNT)
            return any_bag(call, place, column, source, np.int64(0), count, at, bag)
        start, end = element_range(column, source, bag, np.int64(1))
        if end < start:
            tell(call, call_of.BAD_SPLIT, place, bag, end)
            return multiplied(zero, nan)
        if is_plain and end > start and load(source, TABLE_ROWS) > 0:
            total, is_sound = plain_bag(column, source, start, end, at)
            if is_sound:
                return total
        return any_bag(call, place, column, source, start, end, at, np.int64(-1))

    @jit
    def bag(call: int, place: int, number: int, thread: int, group: int) -> None:
        column = load(call, call_of.COLUMNS) + 8 * COLUMN_WORDS * place
        source = load(call, call_of.SOURCES) + 8 * SOURCE_WORDS * place
        offset = load(load(call, call_of.OFFSETS), place)
        out = load(call, call_of.OUT) + number * load(call, call_of.OUT_BYTES) + offset * item
        for first in range(thread * lanes, load(source, TABLE_DIM), group * lanes):
            at = np.int64(first) * item
            store_vector(out + at, elements(call, place, column, source, number, at))

    return bag


def combine_kernel(stored: str, is_plain: bool) -> Any:
    """The kernel `(call, tiles)` for tables of dtype `stored`, of one block for each tile.

    A tile is as many bags of a column as a block of `THREADS` has room for; `tiles` is the address
    of the first tile of each column and the number of all.

    Args:
        is_plain: whether it is for plain columns (`Column.is_plain`) or for the others.
    """
    widest = 16 // ITEM_BYTES[stored]
    half = max(widest // 2, 1)
    four, two, one = (_bag(stored, lanes, is_plain) for lanes in (widest, half, 1))

    def combine(call: int, tiles: int) -> None:
        tile, thread = np.int64(cuda.blockIdx.x), np.int64(cuda.threadIdx.x)
        place = np.int64(0)
        end = load(call, call_of.COUNT)
        while end - place > 1:
            middle = (place + end) // 2
            if load(tiles, middle) <= tile:
                place = middle
            else:
                end = middle
        group = load(load(call, call_of.GROUPS), place)
        number = (tile - load(tiles, place)) * (call_of.THREADS // group) + thread // group
        if number >= load(call, call_of.BATCH):
            return
        lanes = load(load(call, call_of.LANES), place)
        if lanes == widest:
            four(call, place, number, thread % group, group)
        elif lanes == half:
            two(call, place, number, thread % group, group)
        else:
            one(call, place, number, thread % group, group)

    return combine


def check_rows_kernel() -> Any:
    """The kernel `(call, column)` that looks at the rows of entries, a thread for each.

    It tells of rows outside the batch and flags a column whose rows are not in order.
    """

    def check_rows(call: int, place: int) -> None:
        k = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        column = load(call, call_of.COLUMNS) + 8 * COLUMN_WORDS * place
        source = load(call, call_of.SOURCES) + 8 * SOURCE_WORDS * place
        if k >= load(source, ID_COUNT):
            return
        rows, step, kind = load(source, ROWS), load(source, ROW_STEP), load(column, ROWS_KIND)
        row = integer_at(rows, k * step, kind)
        if k > 0 and integer_at(rows, (k - 1) * step, kind) > row:
            store(load(call, call_of.UNSORTED), place, 1)
        if row < 0 or row >= load(call, call_of.BATCH):
            if not is_dropped(column, source, id_at(column, source, k, np.int64(0)), k):
                tell(call, call_of.BAD_ROW, place, k, row)

    return check_rows


__all__ = ["check_rows_kernel", "combine_kernel", "tell"]
