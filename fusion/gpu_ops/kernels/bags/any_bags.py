"""Bags of any column, `lanes` elements at a time: with entries that do not count, weights, norms.

As `bags`, but each element is asked what it is. The order of additions is the CPU's, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.kernels.bags.plain_bags import Bag, Team, head_of
from fusion.gpu_ops.kernels.elements import id_at, integer_at, is_dropped, is_ignored, weight_at
from fusion.gpu_ops.kernels.errors import report_in_call
from fusion.gpu_ops.kernels.tiles import quotient, remainder
from fusion.gpu_ops.language.arithmetic import clipper, normalizer, weigher
from fusion.gpu_ops.language.device import (
    added,
    as_record,
    from_lane,
    jit,
    multiplied,
    vector_loader,
)
from fusion.gpu_ops.layout.call import BAD_DEFAULT, BAD_ID, CombineCall
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES

#: Elements that are no entry, and those with an error: no addresses of rows.
_NO_ENTRY, _BAD_ENTRY = -1, 0
#: Among marks: that an element is an error.
_HAS_BAD_ENTRY = 16


@jit
def _is_of_row(column: ColumnAttrs, source: ColumnInputs, k: int, row: int) -> bool:
    """Whether an element belongs to a row; to any if that is negative."""
    if row < 0:
        return True
    rows, step = source.entry_rows, source.entry_row_stride
    return integer_at(rows, k * step, column.rows_dtype) == row


@jit
def _plain_id(column: ColumnAttrs, source: ColumnInputs, k: int, in_row: int) -> int:
    return integer_at(source.ids, k, column.ids_dtype)


@jit
def _is_plain_entry(column: ColumnAttrs, source: int, number: int, k: int) -> bool:
    if column.use_ignored_id != 0 and number == column.ignored_id:
        return False
    return number >= 0 or column.prune == 0


@jit
def _is_entry(column: int, source: int, number: int, k: int) -> bool:
    return not is_ignored(column, source, k) and not is_dropped(column, source, number, k)


@jit
def _column_index(call: CombineCall, column: int) -> int:
    """The number of a column."""
    return (column - call.columns) // (8 * ColumnAttrs.SIZE)


def _entry_finder(is_plain: bool) -> Any:
    """A device function (call, bag, element) -> an address.

    That is the one of its table row, or else `_NO_ENTRY` or `_BAD_ENTRY`.
    """
    id_of, counts = (_plain_id, _is_plain_entry) if is_plain else (id_at, _is_entry)

    @jit
    def entry(call: CombineCall, bag: Bag, k: int) -> int:
        column, source = as_record(ColumnAttrs, bag.column), as_record(ColumnInputs, bag.source)
        if k >= bag.end or not _is_of_row(column, source, k, bag.row):
            return int64(_NO_ENTRY)
        number = id_of(column, source, k, k - bag.start)
        if not counts(column, source, number, k):
            return int64(_NO_ENTRY)
        if number < 0 or number >= source.table_rows:
            report_in_call(call, BAD_ID, _column_index(call, column), k, number)
            return int64(_BAD_ENTRY)
        return source.table + number * source.row_bytes

    return entry


class _Four(NamedTuple):
    """What four elements of a bag give, side by side: as many rows are on their way at once.

    Attributes:
        v0, v1, v2, v3: their rows, with weights multiplied by them.
        weights: ones without.
        marks: by bit, which of them are entries; `_HAS_BAD_ENTRY` and more if any is an error.
    """

    v0: Any
    v1: Any
    v2: Any
    v3: Any
    weights: Any
    marks: int


class _Sums(NamedTuple):
    """What entries give so far: all of them, the block that is not full, and their weights."""

    total: Any
    block: Any
    terms: Any
    seen: int


def _rows_at_once(stored: str, is_plain: bool) -> int:
    """How many rows of a bag a thread has on their way, if the bag is not quick: one or four.

    With four of them, of eight elements each, the kernel for plain columns needed more registers
    than it may have.
    """
    return 1 if is_plain and DTYPES[stored].item_bytes == 2 else 4


def _four_finder(is_plain: bool, step: int) -> Any:
    """A device function (call, bag, element) -> the addresses of it and the next three.

    `_NO_ENTRY` for those that are not among the `step` rows at once.
    """
    entry, is_alone = _entry_finder(is_plain), step == 1

    @jit
    def four(call: CombineCall, bag: Bag, k: int) -> Any:
        if is_alone:
            return entry(call, bag, k), int64(_NO_ENTRY), int64(_NO_ENTRY), int64(_NO_ENTRY)
        return (
            entry(call, bag, k),
            entry(call, bag, k + 1),
            entry(call, bag, k + 2),
            entry(call, bag, k + 3),
        )

    return four


def _counter(is_plain: bool, step: int) -> Any:
    """A device function (call, bag, team) -> the entries of a bag."""
    four = _four_finder(is_plain, step)

    @jit
    def count(call: CombineCall, bag: Bag, team: Team) -> int:
        n, share = int64(0), quotient(team.thread, team.group)
        k = bag.start + step * share
        while k < bag.end:
            a0, a1, a2, a3 = four(call, bag, k)
            n += int64(a0 != _NO_ENTRY) + int64(a1 != _NO_ENTRY)
            n += int64(a2 != _NO_ENTRY) + int64(a3 != _NO_ENTRY)
            k += step * team.shares
        if team.shares == 1:
            return n
        total = int64(0)
        for share in range(team.shares):
            total += from_lane((n,), share * team.group)[0]
        return total

    return count


@jit
def _mark(address: int, bit: int) -> int:
    if address == _NO_ENTRY:
        return int64(0)
    return int64(_HAS_BAD_ENTRY) if address == _BAD_ENTRY else int64(bit)


def _four_reader(stored: str, lanes: int, is_plain: bool, step: int) -> Any:
    """A device function (call, bag, element, at, whether there are weights) -> `_Four`."""
    dtype, four = DTYPES[stored].compute_type, _four_finder(is_plain, step)
    load_vector, clipped = vector_loader(stored, lanes), clipper(stored, lanes)
    ones = (dtype(1),) * 4

    @jit
    def whole(bag: Bag, address: int, values: Any) -> Any:
        """A row as it counts; what stands for none stays as it is."""
        if is_plain or address <= 0:
            return values
        limit = as_record(ColumnAttrs, bag.column).max_norm
        return clipped(values, address, as_record(ColumnInputs, bag.source).table_dim, limit)

    @jit
    def weight_of(bag: Bag, k: int) -> Any:
        if k >= bag.end:
            return dtype(0)
        return dtype(
            weight_at(
                as_record(ColumnInputs, bag.source).weights,
                k,
                as_record(ColumnInputs, bag.source).table_dtype,
            )
        )

    @jit
    def read(call: CombineCall, bag: Bag, k: int, at: int, is_weighted: bool) -> Any:
        a0, a1, a2, a3 = four(call, bag, k)
        # Where there is no row, the bag's own memory in the result is read, and not used.
        v0 = load_vector((a0 if a0 > 0 else bag.out) + at)
        v1 = load_vector((a1 if a1 > 0 else bag.out) + at)
        v2 = load_vector((a2 if a2 > 0 else bag.out) + at)
        v3 = load_vector((a3 if a3 > 0 else bag.out) + at)
        v0, v1 = whole(bag, a0, v0), whole(bag, a1, v1)
        v2, v3 = whole(bag, a2, v2), whole(bag, a3, v3)
        weights, marks = ones, _mark(a0, 1) | _mark(a1, 2) | _mark(a2, 4) | _mark(a3, 8)
        if not is_plain and is_weighted:
            w0, w1 = weight_of(bag, k), weight_of(bag, k + 1)
            w2, w3 = weight_of(bag, k + 2), weight_of(bag, k + 3)
            v0, v1, weights = multiplied(v0, w0), multiplied(v1, w1), (w0, w1, w2, w3)
            v2, v3 = multiplied(v2, w2), multiplied(v3, w3)
        return _Four(v0, v1, v2, v3, weights, marks)

    return read


def _adder(dtype: type, lanes: int, is_plain: bool) -> Any:
    """A device function (sums, row, weight, head, column, whether there are weights) -> sums.

    The first `head` rows are added one by one, and then blocks of 8; with weights all are added one
    by one, to zero.
    """
    term, _ = weigher(dtype, lanes)

    @jit
    def add(
        sums: _Sums, values: Any, weight: Any, head: int, column: ColumnAttrs, is_weighted: bool
    ) -> Any:
        total, block, terms, seen = sums
        if not is_plain and is_weighted:
            total = added(total, values)
            terms = added((terms,), (term(weight, column.combiner),))[0]
        elif seen < head:
            total = values if seen == 0 else added(total, values)
        else:
            block = values if (seen - head) & 7 == 0 else added(block, values)
            if (seen - head) & 7 == 7:
                total = added(total, block)
        return _Sums(total, block, terms, seen + 1)

    return add


def _folder(dtype: type, lanes: int, is_plain: bool, step: int) -> Any:
    """A device function that adds what four elements give to sums.

    (sums, `_Four`, marks, lane, head, column, whether there are weights) -> sums. The lane is that
    of the thread of the warp that has them, and the marks are its; or else -1: this one.
    """
    add, is_alone = _adder(dtype, lanes, is_plain), step == 1

    @jit
    def shown(values: Any, lane: int) -> Any:
        return values if lane < 0 else from_lane(values, lane)

    @jit
    def fold(
        sums: _Sums,
        mine: _Four,
        marks: int,
        lane: int,
        head: int,
        column: ColumnAttrs,
        is_weighted: bool,
    ) -> Any:
        w0, w1, w2, w3 = mine.weights
        if not is_plain and is_weighted:
            w0, w1, w2, w3 = shown(mine.weights, lane)
        # One after the other, so that only one of another thread's rows takes registers.
        values = shown(mine.v0, lane)
        if marks & 1 != 0:
            sums = add(sums, values, w0, head, column, is_weighted)
        if is_alone:
            return sums
        values = shown(mine.v1, lane)
        if marks & 2 != 0:
            sums = add(sums, values, w1, head, column, is_weighted)
        values = shown(mine.v2, lane)
        if marks & 4 != 0:
            sums = add(sums, values, w2, head, column, is_weighted)
        values = shown(mine.v3, lane)
        if marks & 8 != 0:
            sums = add(sums, values, w3, head, column, is_weighted)
        return sums

    return fold


def any_bag(stored: str, lanes: int, is_plain: bool) -> Any:
    """A device function (call, bag, team, at) -> what a bag gives; NaN after an error.

    Groups that share a bag read its rows in turns, and each adds all of them.
    """
    dtype = DTYPES[stored].compute_type
    zero = (dtype(0),) * lanes
    step = _rows_at_once(stored, is_plain)
    count, read = _counter(is_plain, step), _four_reader(stored, lanes, is_plain, step)
    fold, fill = _folder(dtype, lanes, is_plain, step), _filler(stored, lanes, is_plain)
    normalized, (_, weighted), nan = normalizer(dtype), weigher(dtype, lanes), dtype(np.nan)

    @jit
    def values_of(call: CombineCall, bag: Bag, team: Team, at: int) -> Any:
        column, (thread, group, shares) = as_record(ColumnAttrs, bag.column), team
        is_weighted = not is_plain and column.use_sparse_weights != 0
        head = np.int32(0 if is_weighted else head_of(count(call, bag, team)))
        sums, is_sound = _Sums(zero, zero, dtype(0), int64(0)), True
        k = bag.start
        while k < bag.end:
            mine = read(call, bag, k + step * quotient(thread, group), at, is_weighted)
            busy = min(shares, (bag.end - k + step - 1) // step) if shares > 1 else shares
            for share in range(busy):
                lane = np.int32(remainder(thread, group) + share * group if shares > 1 else -1)
                marks = from_lane((mine.marks,), lane)[0] if shares > 1 else mine.marks
                sums = fold(sums, mine, marks, lane, head, column, is_weighted)
                is_sound = is_sound and marks < _HAS_BAD_ENTRY
            k += step * shares
        if not is_sound or bag.end < bag.start:
            return multiplied(zero, nan)
        if sums.seen == 0:
            return fill(call, column, as_record(ColumnInputs, bag.source), at)
        if is_weighted:
            no_nan = column.divide_no_nan != 0
            return weighted(sums.total, column.combiner, sums.terms, no_nan)
        return normalized(sums.total, column.combiner, sums.seen)

    return values_of


def _filler(stored: str, lanes: int, is_plain: bool) -> Any:
    """A device function (call, column, source, at) -> what a row without entries gives."""
    dtype = DTYPES[stored].compute_type
    load_vector, clipped = vector_loader(stored, lanes), clipper(stored, lanes)
    (term, weighted), zero, nan = weigher(dtype, lanes), (dtype(0),) * lanes, dtype(np.nan)

    @jit
    def fill(call: CombineCall, column: ColumnAttrs, source: ColumnInputs, at: int) -> Any:
        if column.fill_empty_row == 0:
            return zero
        number = max(column.default_id, np.int64(0))
        if number >= source.table_rows:
            report_in_call(call, BAD_DEFAULT, _column_index(call, column), np.int64(-1), number)
            return multiplied(zero, nan)
        if column.default_id < 0:
            return zero
        row = source.table + number * source.row_bytes
        values = load_vector(row + at)
        if is_plain:
            return values
        limit = column.max_norm
        values = clipped(values, row, source.table_dim, limit)
        if column.use_sparse_weights == 0:
            return values
        weight = dtype(column.default_weight)
        combiner = column.combiner
        total = added(zero, multiplied(values, weight))
        return weighted(total, combiner, term(weight, combiner), column.divide_no_nan != 0)

    return fill
