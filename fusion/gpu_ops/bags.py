"""One bag's elements, `lanes` of them at a time, from ids to what its rows give.

There are `quick_bag` and `shared_bag` for bags of which nothing needs to be asked, and `any_bag`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.column_words import (
    COMBINER,
    DEFAULT_ID,
    DEFAULT_WEIGHT,
    FILL,
    IDS,
    IDS_KIND,
    IGNORED,
    MAX_NORM,
    NO_NAN,
    PRUNE,
    ROW_BYTES,
    ROW_STEP,
    ROWS,
    ROWS_KIND,
    TABLE,
    TABLE_DIM,
    TABLE_KIND,
    TABLE_ROWS,
    USE_IGNORED,
    WEIGHTED,
    WEIGHTS,
)
from fusion.gpu_ops.arithmetic import compute_type, normalizer, row_reader, weigher
from fusion.gpu_ops.call_words import BAD_DEFAULT, BAD_ID
from fusion.gpu_ops.device import (
    added,
    as_float,
    from_lane,
    jit,
    load,
    multiplied,
    vector_loader,
)
from fusion.gpu_ops.elements import id_at, integer_at, is_dropped, is_ignored, weight_at
from fusion.gpu_ops.trouble import tell
from fusion.runtime.jit import int64

#: Elements that are no entry, and those with trouble: no addresses of rows.
_NO_ENTRY, _TROUBLE = -1, 0


class Bag(NamedTuple):
    """A bag of a call: its column and source, see `column_words`, and what it is made of.

    Attributes:
        place: the number of the column.
        out: the address of its first element in the result.
        start: its first element.
        end: behind its last one; before `start` in a bag that is no bag.
        row: its number if its elements lie among those of others, else -1.
    """

    place: int
    column: int
    source: int
    out: int
    start: int
    end: int
    row: int


class Team(NamedTuple):
    """The threads that compute a bag, seen from one of them.

    Attributes:
        thread: its number among them.
        group: how many of them go through the elements of a row side by side.
        shares: how many such groups there are.
    """

    thread: int
    group: int
    shares: int


@jit
def _is_of_row(column: int, source: int, k: int, row: int) -> bool:
    """Whether an element belongs to a row; to any if that is negative."""
    if row < 0:
        return True
    rows, step = load(source, ROWS), load(source, ROW_STEP)
    return integer_at(rows, k * step, load(column, ROWS_KIND)) == row


@jit
def _plain_id(column: int, source: int, k: int, place: int) -> int:
    return integer_at(load(source, IDS), k, load(column, IDS_KIND))


@jit
def _is_plain_entry(column: int, source: int, number: int, k: int) -> bool:
    if load(column, USE_IGNORED) != 0 and number == load(column, IGNORED):
        return False
    return number >= 0 or load(column, PRUNE) == 0


@jit
def _is_entry(column: int, source: int, number: int, k: int) -> bool:
    return not is_ignored(column, source, k) and not is_dropped(column, source, number, k)


def _entry_finder(is_plain: bool) -> Any:
    """A device function (call, place, column, source, element, first element, row) -> an address.

    That is the one of its table row, or else `_NO_ENTRY` or `_TROUBLE`; only if `row` is negative
    or the element's.
    """
    id_of, counts = (_plain_id, _is_plain_entry) if is_plain else (id_at, _is_entry)

    @jit
    def entry(call: int, place: int, column: int, source: int, k: int, first: int, row: int) -> int:
        if not _is_of_row(column, source, k, row):
            return int64(_NO_ENTRY)
        number = id_of(column, source, k, k - first)
        if not counts(column, source, number, k):
            return int64(_NO_ENTRY)
        if number < 0 or number >= load(source, TABLE_ROWS):
            tell(call, BAD_ID, place, k, number)
            return int64(_TROUBLE)
        return load(source, TABLE) + number * load(source, ROW_BYTES)

    return entry


@jit
def head_of(n: int) -> int:
    """How many of n rows are added up one by one; blocks of 8 follow."""
    head = n % 8
    return head if head >= 2 else min(head + 8, n)


@jit
def row_of(source: int, kind: int, k: int, safe: int) -> Any:
    """The address of an element's row, or else the safe one; whether it has a row."""
    number = integer_at(load(source, IDS), k, kind)
    is_sound = 0 <= number < load(source, TABLE_ROWS)
    row = load(source, TABLE) + number * load(source, ROW_BYTES)
    return row if is_sound else safe, is_sound


def _head_adder(stored: str, lanes: int) -> Any:
    """A device function (source, kind, start, behind, at, safe) -> (sum, whether all count)."""
    load_vector = vector_loader(stored, lanes)

    @jit
    def head(source: int, kind: int, start: int, behind: int, at: int, safe: int) -> Any:
        row, is_sound = row_of(source, kind, start, safe)
        total = load_vector(row + at)
        for k in range(start + 1, behind):
            row, counts = row_of(source, kind, k, safe)
            total, is_sound = added(total, load_vector(row + at)), is_sound and counts
        return total, is_sound

    return head


def quick_bag(stored: str, lanes: int) -> Any:
    """A device function (bag, team, at) -> (sum, whether all count).

    It is for at least one element of a plain column (`Column.is_plain`); `at` says where in a row,
    in bytes. For elements that do not count, the bag's own memory in the result is read as if it
    were their row, and the sum means nothing.
    """
    load_vector, head = vector_loader(stored, lanes), _head_adder(stored, lanes)
    normalized = normalizer(compute_type(stored))

    @jit
    def block_of(source: int, kind: int, k: int, at: int, safe: int) -> Any:
        """The sum of eight rows, which are all on their way at the same time."""
        r0, s0 = row_of(source, kind, k, safe)
        r1, s1 = row_of(source, kind, k + 1, safe)
        r2, s2 = row_of(source, kind, k + 2, safe)
        r3, s3 = row_of(source, kind, k + 3, safe)
        r4, s4 = row_of(source, kind, k + 4, safe)
        r5, s5 = row_of(source, kind, k + 5, safe)
        r6, s6 = row_of(source, kind, k + 6, safe)
        r7, s7 = row_of(source, kind, k + 7, safe)
        v0, v1 = load_vector(r0 + at), load_vector(r1 + at)
        v2, v3 = load_vector(r2 + at), load_vector(r3 + at)
        v4, v5 = load_vector(r4 + at), load_vector(r5 + at)
        v6, v7 = load_vector(r6 + at), load_vector(r7 + at)
        block = added(added(added(v0, v1), v2), v3)
        block = added(added(added(added(block, v4), v5), v6), v7)
        return block, s0 and s1 and s2 and s3 and s4 and s5 and s6 and s7

    @jit
    def sum_of(bag: Bag, team: Team, at: int) -> Any:
        n, kind = bag.end - bag.start, load(bag.column, IDS_KIND)
        source, safe, behind = bag.source, bag.out, bag.start + head_of(n)
        total, is_sound = head(source, kind, bag.start, behind, at, safe)
        for k in range(behind, bag.end, 8):
            block, counts = block_of(source, kind, k, at, safe)
            total, is_sound = added(total, block), is_sound and counts
        return normalized(total, load(bag.column, COMBINER), n), is_sound

    return sum_of


def shared_bag(stored: str, lanes: int) -> Any:
    """As `quick_bag`, for a bag that a warp computes: its groups take turns at blocks.

    All groups give the same.
    """
    dtype = compute_type(stored)
    load_vector, head = vector_loader(stored, lanes), _head_adder(stored, lanes)
    normalized, zero = normalizer(dtype), (dtype(0),) * lanes
    yes, no = (dtype(1),), (dtype(0),)

    @jit
    def four_of(
        source: int, kind: int, k: int, at: int, safe: int, total: Any, is_first: bool
    ) -> Any:
        """The sum with four more rows. With eight, more registers were needed."""
        r0, s0 = row_of(source, kind, k, safe)
        r1, s1 = row_of(source, kind, k + 1, safe)
        r2, s2 = row_of(source, kind, k + 2, safe)
        r3, s3 = row_of(source, kind, k + 3, safe)
        v0, v1 = load_vector(r0 + at), load_vector(r1 + at)
        v2, v3 = load_vector(r2 + at), load_vector(r3 + at)
        total = v0 if is_first else added(total, v0)
        return added(added(added(total, v1), v2), v3), s0 and s1 and s2 and s3

    @jit
    def sum_of(bag: Bag, team: Team, at: int) -> Any:
        thread, group, shares = team
        n, kind = bag.end - bag.start, load(bag.column, IDS_KIND)
        source, safe, behind = bag.source, bag.out, bag.start + head_of(n)
        total, is_sound = head(source, kind, bag.start, behind, at, safe)
        for k in range(behind, bag.end, 8 * shares):
            mine, block = k + 8 * (thread // group), zero
            if mine < bag.end:
                for row in range(mine, mine + 8, 4):
                    block, counts = four_of(source, kind, row, at, safe, block, row == mine)
                    is_sound = is_sound and counts
            for share in range(min(shares, (bag.end - k) // 8)):
                total = added(total, from_lane(block, thread % group + share * group))
        for share in range(shares):
            verdict = from_lane(yes if is_sound else no, thread % group + share * group)
            is_sound = is_sound and verdict[0] != dtype(0)
        return normalized(total, load(bag.column, COMBINER), n), is_sound

    return sum_of


def any_bag(stored: str, lanes: int, is_plain: bool) -> Any:
    """A device function (call, bag, at) -> what a bag gives; NaN if there is trouble."""
    plain = _plain_sum(stored, lanes, is_plain)
    if is_plain:
        return plain
    weighted = _weighted_sum(stored, lanes)

    @jit
    def values_of(call: int, bag: Bag, at: int) -> Any:
        if load(bag.column, WEIGHTED) != 0:
            return weighted(call, bag, at)
        return plain(call, bag, at)

    return values_of


def _plain_sum(stored: str, lanes: int, is_plain: bool) -> Any:
    """`any_bag` without weights."""
    dtype, read = compute_type(stored), row_reader(stored, lanes, is_clipped=not is_plain)
    entry, fill = _entry_finder(is_plain), _filler(stored, lanes, is_plain)
    normalized, zero, nan = normalizer(dtype), (dtype(0),) * lanes, dtype(np.nan)

    @jit
    def values_of(call: int, bag: Bag, at: int) -> Any:
        place, column, source, _, start, end, row = bag
        n = 0
        for k in range(start, end):
            if entry(call, place, column, source, k, start, row) != _NO_ENTRY:
                n += 1
        if n == 0 and end >= start:
            return fill(call, place, column, source, at)
        limit, dim, head = as_float(load(column, MAX_NORM)), load(source, TABLE_DIM), head_of(n)
        total, block, seen, is_sound = zero, zero, 0, end >= start
        for k in range(start, end):
            address = entry(call, place, column, source, k, start, row)
            if address == _NO_ENTRY:
                continue
            if address == _TROUBLE:
                is_sound = False
                continue
            values = read(address, at, dim, limit)
            if seen < head:
                total = values if seen == 0 else added(total, values)
            else:
                block = values if (seen - head) % 8 == 0 else added(block, values)
                if (seen - head) % 8 == 7:
                    total = added(total, block)
            seen += 1
        if not is_sound:
            return multiplied(zero, nan)
        return normalized(total, load(column, COMBINER), n)

    return values_of


def _weighted_sum(stored: str, lanes: int) -> Any:
    """`any_bag` with weights."""
    dtype, read = compute_type(stored), row_reader(stored, lanes, is_clipped=True)
    entry, fill = _entry_finder(is_plain=False), _filler(stored, lanes, is_plain=False)
    (term, weighted), zero, nan = weigher(dtype, lanes), (dtype(0),) * lanes, dtype(np.nan)

    @jit
    def values_of(call: int, bag: Bag, at: int) -> Any:
        place, column, source, _, start, end, row = bag
        limit, dim = as_float(load(column, MAX_NORM)), load(source, TABLE_DIM)
        combiner, weights = load(column, COMBINER), load(source, WEIGHTS)
        kind, total, terms, n = load(source, TABLE_KIND), zero, dtype(0), 0
        is_sound = end >= start
        for k in range(start, end):
            address = entry(call, place, column, source, k, start, row)
            if address == _NO_ENTRY:
                continue
            n += 1
            if address == _TROUBLE:
                is_sound = False
                continue
            weight = dtype(weight_at(weights, k, kind))
            total = added(total, multiplied(read(address, at, dim, limit), weight))
            terms = added((terms,), (term(weight, combiner),))[0]
        if n == 0 and end >= start:
            return fill(call, place, column, source, at)
        if not is_sound:
            return multiplied(zero, nan)
        return weighted(total, combiner, terms, load(column, NO_NAN) != 0)

    return values_of


def _filler(stored: str, lanes: int, is_plain: bool) -> Any:
    """A device function (call, place, column, source, at) -> what a row without entries gives."""
    dtype, read = compute_type(stored), row_reader(stored, lanes, is_clipped=not is_plain)
    (term, weighted), zero, nan = weigher(dtype, lanes), (dtype(0),) * lanes, dtype(np.nan)

    @jit
    def fill(call: int, place: int, column: int, source: int, at: int) -> Any:
        if load(column, FILL) == 0:
            return zero
        number = max(load(column, DEFAULT_ID), np.int64(0))
        if number >= load(source, TABLE_ROWS):
            tell(call, BAD_DEFAULT, place, np.int64(-1), number)
            return multiplied(zero, nan)
        if load(column, DEFAULT_ID) < 0:
            return zero
        row = load(source, TABLE) + number * load(source, ROW_BYTES)
        values = read(row, at, load(source, TABLE_DIM), as_float(load(column, MAX_NORM)))
        if is_plain or load(column, WEIGHTED) == 0:
            return values
        weight, combiner = dtype(as_float(load(column, DEFAULT_WEIGHT))), load(column, COMBINER)
        total = added(zero, multiplied(values, weight))
        return weighted(total, combiner, term(weight, combiner), load(column, NO_NAN) != 0)

    return fill
