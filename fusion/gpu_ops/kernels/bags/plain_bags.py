"""The sum of one bag of a plain column, `lanes` elements at a time.

Here for bags of plain columns: `quick_bag` and `shared_bag`. For others, see
`any_bags`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.kernels.elements import integer_at
from fusion.gpu_ops.kernels.tiles import quotient, remainder
from fusion.gpu_ops.language.arithmetic import normalizer
from fusion.gpu_ops.language.device import added, as_record, from_lane, jit, vector_loader
from fusion.runtime.tensorflow.dtypes import DTYPES


class Bag(NamedTuple):
    """A bag of a call: its column and source, see `ColumnAttrs`, `ColumnInputs`, and its rows.

    Attributes:
        out: the address of its first element in the result.
        start: its first element.
        end: after its last one; before `start` in a bag that is no bag.
        row: its number if its elements lie among those of others, else -1.
    """

    column: int
    source: int
    out: int
    start: int
    end: int
    row: int


class Team(NamedTuple):
    """The threads that compute a bag, seen from one of them.

    The numbers are int32: wider ones take two registers each.

    Attributes:
        thread: its number among them.
        group: how many of them go through the elements of a row side by side.
        shares: how many such groups there are.
    """

    thread: Any
    group: Any
    shares: Any


@jit
def head_of(n: int) -> int:
    """How many of n rows are added up one by one; blocks of 8 follow."""
    head = n & 7
    return head if head >= 2 else min(head + 8, n)


@jit
def row_of(source: ColumnInputs, ids_dtype: int, k: int, safe: int) -> Any:
    """The address of an element's row, or else the safe one; whether it has a row."""
    number = integer_at(source.ids, k, ids_dtype)
    is_sound = 0 <= number < source.table_rows
    row = source.table + number * source.row_bytes
    return row if is_sound else safe, is_sound


def _head_adder(stored: str, lanes: int) -> Any:
    """A device function (source, ids_dtype, start, end, at, safe) -> (sum, whether all count).

    Four rows are loaded at a time; beyond the last one it is that one again.
    """
    load_vector = vector_loader(stored, lanes)

    @jit
    def head(source: ColumnInputs, ids_dtype: int, start: int, end: int, at: int, safe: int) -> Any:
        last = end - 1
        row, is_sound = row_of(source, ids_dtype, start, safe)
        total = load_vector(row + at)
        if last == start:
            return total, is_sound
        for k in range(start, end, 4):
            r0, s0 = row_of(source, ids_dtype, k, safe)
            r1, s1 = row_of(source, ids_dtype, min(k + 1, last), safe)
            r2, s2 = row_of(source, ids_dtype, min(k + 2, last), safe)
            r3, s3 = row_of(source, ids_dtype, min(k + 3, last), safe)
            v0, v1 = load_vector(r0 + at), load_vector(r1 + at)
            v2, v3 = load_vector(r2 + at), load_vector(r3 + at)
            total = v0 if k == start else added(total, v0)
            total = added(total, v1) if k + 1 <= last else total
            total = added(total, v2) if k + 2 <= last else total
            total = added(total, v3) if k + 3 <= last else total
            is_sound = is_sound and s0 and s1 and s2 and s3
        return total, is_sound

    return head


def quick_bag(stored: str, lanes: int) -> Any:
    """A device function (bag, team, at) -> (sum, whether all count).

    It is for at least one element of a plain column (`layout.is_plain`); `at` says where in a row,
    in bytes. For elements that do not count, the bag's own memory in the result is read as if it
    were their row, and the sum means nothing.
    """
    load_vector, head = vector_loader(stored, lanes), _head_adder(stored, lanes)
    normalized = normalizer(DTYPES[stored].compute_type)

    @jit
    def block_of(source: ColumnInputs, ids_dtype: int, k: int, at: int, safe: int) -> Any:
        """The sum of eight rows, which are all loaded at the same time."""
        r0, s0 = row_of(source, ids_dtype, k, safe)
        r1, s1 = row_of(source, ids_dtype, k + 1, safe)
        r2, s2 = row_of(source, ids_dtype, k + 2, safe)
        r3, s3 = row_of(source, ids_dtype, k + 3, safe)
        r4, s4 = row_of(source, ids_dtype, k + 4, safe)
        r5, s5 = row_of(source, ids_dtype, k + 5, safe)
        r6, s6 = row_of(source, ids_dtype, k + 6, safe)
        r7, s7 = row_of(source, ids_dtype, k + 7, safe)
        v0, v1 = load_vector(r0 + at), load_vector(r1 + at)
        v2, v3 = load_vector(r2 + at), load_vector(r3 + at)
        v4, v5 = load_vector(r4 + at), load_vector(r5 + at)
        v6, v7 = load_vector(r6 + at), load_vector(r7 + at)
        block = added(added(added(v0, v1), v2), v3)
        block = added(added(added(added(block, v4), v5), v6), v7)
        return block, s0 & s1 & s2 & s3 & s4 & s5 & s6 & s7

    @jit
    def sum_of(bag: Bag, team: Team, at: int) -> Any:
        n, ids_dtype = bag.end - bag.start, as_record(ColumnAttrs, bag.column).ids_dtype
        source, safe, tail = as_record(ColumnInputs, bag.source), bag.out, bag.start + head_of(n)
        total, is_sound = head(source, ids_dtype, bag.start, tail, at, safe)
        for k in range(tail, bag.end, 8):
            block, counts = block_of(source, ids_dtype, k, at, safe)
            total, is_sound = added(total, block), is_sound and counts
        return normalized(total, as_record(ColumnAttrs, bag.column).combiner, n), is_sound

    return sum_of


def shared_bag(stored: str, lanes: int) -> Any:
    """As `quick_bag`, for a bag that a warp computes: its groups take turns at blocks.

    All groups give the same.
    """
    dtype = DTYPES[stored].compute_type
    load_vector, head = vector_loader(stored, lanes), _head_adder(stored, lanes)
    normalized, zero = normalizer(dtype), (dtype(0),) * lanes
    yes, no = (dtype(1),), (dtype(0),)

    @jit
    def four_of(
        source: ColumnInputs, ids_dtype: int, k: int, at: int, safe: int, total: Any, is_first: bool
    ) -> Any:
        """The sum with four more rows. With eight, more registers were needed."""
        r0, s0 = row_of(source, ids_dtype, k, safe)
        r1, s1 = row_of(source, ids_dtype, k + 1, safe)
        r2, s2 = row_of(source, ids_dtype, k + 2, safe)
        r3, s3 = row_of(source, ids_dtype, k + 3, safe)
        v0, v1 = load_vector(r0 + at), load_vector(r1 + at)
        v2, v3 = load_vector(r2 + at), load_vector(r3 + at)
        total = v0 if is_first else added(total, v0)
        return added(added(added(total, v1), v2), v3), s0 & s1 & s2 & s3

    @jit
    def sum_of(bag: Bag, team: Team, at: int) -> Any:
        thread, group, shares = team
        n, ids_dtype = bag.end - bag.start, as_record(ColumnAttrs, bag.column).ids_dtype
        source, safe, tail = as_record(ColumnInputs, bag.source), bag.out, bag.start + head_of(n)
        total, is_sound = head(source, ids_dtype, bag.start, tail, at, safe)
        k = tail
        while k < bag.end:
            mine, block = k + 8 * quotient(thread, group), zero
            if mine < bag.end:
                for row in range(mine, mine + 8, 4):
                    block, counts = four_of(source, ids_dtype, row, at, safe, block, row == mine)
                    is_sound = is_sound and counts
            for share in range(min(shares, (bag.end - k) // 8)):
                total = added(total, from_lane(block, remainder(thread, group) + share * group))
            k += 8 * shares
        for share in range(shares):
            verdict = from_lane(yes if is_sound else no, remainder(thread, group) + share * group)
            is_sound = is_sound and verdict[0] != dtype(0)
        return normalized(total, as_record(ColumnAttrs, bag.column).combiner, n), is_sound

    return sum_of
