"""The kernel of the op before the gathers of many columns.

A task is a column: its entries are listed (`columns`), their ids numbered (`numbering`). How many
distinct ids there are is only known then; so they are kept aside until all tasks are done, and
copied to tensors of their own. A column that meets anything unusual is only marked, and done once
more in the end by the kernel's own thread, which sorts, or says what is wrong.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import column_words as words
from fusion.cpu_ops.ascending import sort_keys
from fusion.cpu_ops.columns import element_range, list_kept, list_kept_unsorted
from fusion.cpu_ops.elements import Batch, put_weight
from fusion.cpu_ops.numbering import Numbering, number_entries
from fusion.cpu_ops.unique import table_bits
from fusion.ops.columns.inputs import body, column_at, release, take_source
from fusion.ops.columns.slow_path import explain, is_by_row
from fusion.ops.columns.state import COUNT, ITEM, POOL, WEIGHTED_COUNT
from fusion.ops.columns.tasks import (
    ROOM_WORDS,
    batch_in,
    free_room,
    lists_in,
    make_room,
    open_room,
    order_in,
    slots_in,
)
from fusion.runtime.native.atomic import atomic_add, atomic_store
from fusion.runtime.native.frame import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    context,
    fail,
    fail_column,
    failed,
    kernel_state,
    new_output,
    scratch,
    status_of,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words, store, store_as
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status
from fusion.runtime.threads import jobs
from fusion.runtime.threads import layout as threads_layout
from fusion.schema.attributes import MOST_ENTRIES

#: What the tasks of a call share, by word behind those of every job: the op's context, state and
#: number of rows; where each column's entries start, int64 [columns + 1]; marks of columns, int64,
#: and how many are set; room for the distinct ids of all columns, int64; how many each has, int64;
#: tensors for them, int64 [columns] addresses; the outputs of all columns; whether the tasks are to
#: copy the distinct ids to their tensors.
(CTX, STATE, BATCH, FIRSTS, MARKS, MARKED, KEYS, FOUND, OUTS, PLACES, SPLITS, WEIGHTS, COPIES) = (
    range(threads_layout.JOB_WORDS, threads_layout.JOB_WORDS + 13)
)
_CALL_WORDS = threads_layout.JOB_WORDS + 13

#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000
#: So many distinct ids are copied sooner than that.
_PARALLEL_KEYS = 30_000
#: What a column and an element of it cost in nanoseconds.
_COLUMN_NS, _ELEMENT_NS = 800, 8


@jit
def _survey(frame: int, ctx: int, state: int, source: int, firsts: int) -> int:
    """Notes where each column's entries start; returns the number of rows, -1 without columns."""
    batch, total = int64(-1), int64(0)
    for index in range(body(state, COUNT)):
        store(firsts, index, total)
        sound = take_source(frame, ctx, state, index, source, status_of(frame), int64(0))
        if sound:
            rows, ids = load(source, words.BATCH), load(source, words.ID_COUNT)
            if max(rows, ids) >= int64(MOST_ENTRIES):
                text = " has %lld rows and %lld ids, more than can be numbered"
                fail_column(frame, INVALID_ARGUMENT, text, int64(index), rows, ids)
            batch = rows if batch < 0 else batch
            total += ids
            if load(column_at(state, index), words.FILL) != 0:
                total += rows
            if rows != batch:
                text = " has %lld rows, but others have %lld"
                fail_column(frame, INVALID_ARGUMENT, text, int64(index), rows, batch)
        release(source)
        if failed(frame):
            return batch
    store(firsts, body(state, COUNT), total)
    return batch


@jit
def _number(job: int, place: int, batch: Batch, room: int, entries: int) -> None:
    """Numbers a column's listed entries, and those that fill its rows."""
    first = load(load(job, FIRSTS), place)
    bits = table_bits(entries + 1)
    numbering = Numbering(
        load(job, KEYS) + 8 * first,
        first,
        load(job, PLACES),
        load(job, WEIGHTS),
        load(job, SPLITS) + 4 * place * (load(job, BATCH) + 1),
        slots_in(room, bits),
        bits,
    )
    found, end = number_entries(batch, numbering)
    if load(batch.column, words.SORT_KEYS) != 0:
        sort_keys(numbering, found, end, lists_in(room))
    store(load(job, FOUND), place, found)
    # What belongs to nobody is 0, so that results are always the same.
    behind, has_weights = (
        load(load(job, FIRSTS), place + 1),
        load(batch.column, words.WEIGHTED) != 0,
    )
    for k in range(end, behind):
        store_as(load(job, PLACES), k, np.int32(0), np.int32)
    if body(load(job, STATE), WEIGHTED_COUNT) != 0:
        for k in range(end if has_weights else first, behind):
            put_weight(load(job, WEIGHTS), k, 0.0, load(batch.source, words.TABLE_KIND))


@jit
def _do_column(job: int, place: int, source: int, room: int) -> bool:
    """Does a column; returns False, having done anything or nothing, if it is not as it should."""
    column = column_at(load(job, STATE), place)
    rows = load(job, BATCH)
    start, end = element_range(column, source, int64(0), rows)
    if end < start or not make_room(room, end - start + rows, rows):
        return False
    batch = batch_in(room, column, source, int64(0), rows)
    entries = list_kept(batch, start, end)
    if entries < 0:
        return False
    _number(job, place, batch, room, entries)
    return True


@jit
def do_columns(job: int) -> None:
    """Does tasks until all have been begun."""
    if load(job, COPIES) == 0:
        _number_columns(job)
        return
    place = jobs.next_task(job)
    while place >= 0:
        _copy_keys(job, place)
        place = jobs.next_task(job)


@jit
def _number_columns(job: int) -> None:
    source, room = stack_words(words.SOURCE_WORDS), stack_words(ROOM_WORDS)
    open_room(room)
    status = tf_new_status()
    ctx, state = load(job, CTX), load(job, STATE)
    place = jobs.next_task(job)
    while place >= 0:
        done = take_source(int64(0), ctx, state, place, source, status, int64(0))
        done = done and _do_column(job, place, source, room)
        release(source)
        if not done:
            atomic_store(load(job, MARKS), place, int64(1))
            atomic_add(job, MARKED, int64(1))
        place = jobs.next_task(job)
    free_room(room)
    tf_delete_status(status)


@jit
def _finish_column(frame: int, job: int, place: int, source: int, room: int) -> None:
    """Does a column in any order of its entries, or says what is wrong with it."""
    state, rows = load(job, STATE), load(job, BATCH)
    column = column_at(state, place)
    if not take_source(frame, load(job, CTX), state, place, source, status_of(frame), int64(0)):
        return
    if not make_room(room, load(source, words.ID_COUNT) + rows, rows + 1):
        fail_column(frame, RESOURCE_EXHAUSTED, ": no memory for %lld rows", place, rows)
        return
    batch = batch_in(room, column, source, int64(0), rows)
    start, end = element_range(column, source, int64(0), rows)
    entries = list_kept(batch, start, end) if end >= start else int64(-1)
    if entries < 0 and is_by_row(column) and load(column, words.ROW_COUNT) == 0:
        entries = list_kept_unsorted(batch, order_in(room))
    if entries < 0:
        explain(frame, place, batch)
        return
    _number(job, place, batch, room, entries)


@jit
def _finish(frame: int, job: int, source: int) -> None:
    """Does the marked columns."""
    room = stack_words(ROOM_WORDS)
    open_room(room)
    for index in range(load(job, threads_layout.TASKS)):
        if load(load(job, MARKS), index) != 0 and not failed(frame):
            _finish_column(frame, job, int64(index), source, room)
            release(source)
    free_room(room)


@jit
def _copy_keys(job: int, place: int) -> None:
    """Copies the distinct ids of a column to their tensor; marks the column if one does not fit."""
    found, out = load(load(job, FOUND), place), load(load(job, OUTS), place)
    keys = load(job, KEYS) + 8 * load(load(job, FIRSTS), place)
    if load(column_at(load(job, STATE), place), words.KEYS_KIND) == words.INT64:
        for k in range(found):
            store(out, k, load(keys, k))
        return
    for k in range(found):
        key = load(keys, k)
        store_as(out, k, np.int32(key), np.int32)
        if key != int64(np.int32(key)):
            store(load(job, MARKS), place, key)


@jit
def _put_keys(frame: int, job: int, pool: int) -> None:
    """Gives the distinct ids of each column a tensor of their own."""
    state, total = load(job, STATE), int64(0)
    count = load(job, threads_layout.TASKS)
    for index in range(count):
        found = load(load(job, FOUND), index)
        is_wide = load(column_at(state, index), words.KEYS_KIND) == words.INT64
        item = int64(8) if is_wide else int64(4)
        out = new_output(frame, int64(index), int64(1), found, int64(1), item)
        store(load(job, OUTS), index, out)
        store(load(job, MARKS), index, 0)
        total += found
    if failed(frame):
        return
    store(job, threads_layout.NEXT, 0)
    store(job, COPIES, 1)
    helpers = pool if total > int64(_PARALLEL_KEYS) else int64(0)
    slot = jobs.open_job(helpers, job)
    do_columns(job)
    jobs.close_job(helpers, slot)
    for index in range(count):
        key = load(load(job, MARKS), index)
        if key != 0:
            text = ": the id %lld does not fit int32, the dtype of unique_keys"
            fail_column(frame, INVALID_ARGUMENT, text, int64(index), key)
            return


def prepare(frame: int) -> None:
    """The kernel body."""
    ctx, state = context(frame), kernel_state(frame)
    count, pool = body(state, COUNT), body(state, POOL)
    source, job = stack_words(words.SOURCE_WORDS), stack_words(_CALL_WORDS)
    lists = scratch(frame, 4 * count + 1, np.int64)
    if failed(frame):
        return
    firsts = lists.ctypes.data
    batch = _survey(frame, ctx, state, source, firsts)
    if failed(frame):
        return
    total = load(firsts, count)
    if total > int64(MOST_ENTRIES):
        text = "%lld entries are more than the %lld that can be numbered"
        fail(frame, INVALID_ARGUMENT, text, total, int64(MOST_ENTRIES))
        return
    keys = scratch(frame, total, np.int64)
    weights = total if body(state, WEIGHTED_COUNT) != 0 else int64(0)
    store(job, PLACES, new_output(frame, count, int64(1), total, int64(1), int64(4)))
    store(job, SPLITS, new_output(frame, count + 1, int64(2), count, batch + 1, int64(4)))
    item = body(state, ITEM)
    store(job, WEIGHTS, new_output(frame, count + 2, int64(1), weights, int64(1), item))
    if failed(frame):
        return
    store(job, threads_layout.KERNEL, load(state, 0))
    store(job, threads_layout.NEXT, 0)
    store(job, threads_layout.TASKS, count)
    store(job, CTX, ctx)
    store(job, STATE, state)
    store(job, BATCH, batch)
    store(job, FIRSTS, firsts)
    store(job, MARKS, firsts + 8 * (count + 1))
    store(job, MARKED, 0)
    store(job, KEYS, keys.ctypes.data)
    store(job, FOUND, firsts + 8 * (2 * count + 1))
    store(job, OUTS, firsts + 8 * (3 * count + 1))
    store(job, COPIES, 0)
    for index in range(count):
        store(load(job, MARKS), index, 0)
    cost = count * _COLUMN_NS + total * _ELEMENT_NS
    helpers = pool if cost > _PARALLEL_NS else int64(0)
    slot = jobs.open_job(helpers, job)
    do_columns(job)
    jobs.close_job(helpers, slot)
    if load(job, MARKED) != 0:
        _finish(frame, job, source)
    if not failed(frame):
        _put_keys(frame, job, pool)
