"""The kernel of the gradient of the op behind the gathers of many columns.

A task is a column, or a range of its distinct ids if there are few columns: each task reads all of
the column's entries and adds up the gradients of the ids that are its own (`scatter`).
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import column_words as words
from fusion.cpu_ops import scatter
from fusion.cpu_ops.elements import weight_at
from fusion.ops.columns.inputs import (
    ENTRIES,
    ENTRY_COUNT,
    ENTRY_WEIGHTS,
    SHARED_WORDS,
    SPLIT_COUNT,
    SPLITS,
    body,
    column_at,
    input_tensor,
    release_shared,
    take_shared,
)
from fusion.ops.columns.state import COUNT, ITEM, KIND, LOOKUPS, POOL, WEIGHTED_COUNT
from fusion.ops.columns.tasks import call_by_pieces
from fusion.runtime.native.frame import (
    INVALID_ARGUMENT,
    check,
    context,
    fail,
    failed,
    kernel_state,
    reused_output,
    scratch,
    status_of,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_delete_tensor, tf_dim, tf_num_dims, tf_tensor_data
from fusion.runtime.threads import jobs
from fusion.runtime.threads import layout as threads_layout
from fusion.runtime.threads.layout import THREADS

#: What the tasks of a call share, by word behind those of every job: the op's state; the gradient
#: of the first bag and bytes from one to the next; what columns share; ranges of ids that a column
#: is done in; words of each column, see below; weights in the compute dtype.
(STATE, TOP, TOP_BYTES, SHARED, PARTS, COLUMNS, WEIGHTS) = range(
    threads_layout.JOB_WORDS, threads_layout.JOB_WORDS + 7
)
CALL_WORDS = threads_layout.JOB_WORDS + 7

#: Of a column, by word: the number of distinct ids, D, where it starts in a row of the gradient,
#: where the gradients of its rows and their sums go, and what is wrong: a split, -1 - k for entry
#: k, or nothing.
KEYS, DIM, FIRST, OUT, SUMS, WRONG = range(6)
COLUMN_WORDS = 6
_NOTHING = -(2**62)

#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000
_COLUMN_NS, _ENTRY_NS = 300, 8


@jit
def take_top(frame: int, job: int, slot: int, batch: int) -> int:
    """Takes the gradient of the result; returns the number of its columns."""
    ctx = context(frame)
    top = input_tensor(ctx, int64(0), slot, status_of(frame))
    if top == 0:
        check(frame)
        return int64(0)
    if tf_num_dims(top) != 2:
        fail(frame, INVALID_ARGUMENT, "top_grad has rank %lld, not 2", int64(tf_num_dims(top)))
        return int64(0)
    rows, width = tf_dim(top, np.int32(0)), tf_dim(top, np.int32(1))
    if rows < batch:
        text = "top_grad has %lld rows, but row_splits say %lld"
        fail(frame, INVALID_ARGUMENT, text, rows, batch)
    store(job, TOP, tf_tensor_data(top))
    store(job, TOP_BYTES, width * body(load(job, STATE), ITEM))
    return width


@jit
def take_columns(frame: int, job: int, ctx: int, width: int) -> int:
    """Makes the outputs; returns the number of their elements."""
    state, slot, total, end = load(job, STATE), stack_words(1), int64(0), int64(0)
    for index in range(body(state, COUNT)):
        rows = input_tensor(ctx, index + 1, slot, status_of(frame))
        if rows == 0:
            check(frame)
            return total
        rank = int64(tf_num_dims(rows))
        keys = tf_dim(rows, np.int32(0)) if rank == 2 else int64(0)
        dim = tf_dim(rows, np.int32(1)) if rank == 2 else int64(0)
        tf_delete_tensor(rows)
        first = load(column_at(state, index), words.TOP_OFFSET)
        first = end if first < 0 else first
        known = load(column_at(state, index), words.DIM)
        if rank != 2:
            text = "emb_rows[%lld] has rank %lld, not 2"
            fail(frame, INVALID_ARGUMENT, text, int64(index), rank)
        elif first > width - dim:
            text = "column %lld has %lld elements from %lld on, but a row of top_grad only %lld"
            fail(frame, INVALID_ARGUMENT, text, int64(index), dim, first, width)
        elif known >= 0 and known != dim:
            text = "column %lld has rows of %lld elements, but dim is %lld"
            fail(frame, INVALID_ARGUMENT, text, int64(index), dim, known)
        end = first + dim
        # The rows themselves are not read.
        out = reused_output(frame, int64(index), int64(index + 1), keys, dim)
        if failed(frame):
            return total
        column = load(job, COLUMNS) + 8 * COLUMN_WORDS * index
        store(column, KEYS, keys)
        store(column, DIM, dim)
        store(column, FIRST, first)
        store(column, OUT, out)
        total += keys * dim
    return total


@jit
def _first_wrong(job: int, place: int) -> int:
    """What is wrong with a column's entries, see `WRONG`."""
    shared = load(job, SHARED)
    count, total = load(shared, SPLIT_COUNT), load(shared, ENTRY_COUNT)
    starts = load(shared, SPLITS) + 4 * place * count
    places, keys = load(shared, ENTRIES), load(load(job, COLUMNS), COLUMN_WORDS * place + KEYS)
    last = int64(0)
    for row in range(count):
        split = int64(load_as(starts, row, np.int32))
        if split < last or split > total:
            return int64(row)
        last = split
    first, inside = int64(load_as(starts, int64(0), np.int32)), int64(-1)
    for k in range(first, last):
        number = int64(load_as(places, k, np.int32))
        # The first is negative unless the place is, the second unless it is too large.
        inside &= ~number & (number - keys)
    if inside < 0:
        return int64(_NOTHING)
    while 0 <= load_as(places, first, np.int32) < keys:
        first += 1
    return -1 - first


@jit
def _explain(frame: int, job: int, place: int, wrong: int) -> None:
    shared = load(job, SHARED)
    if wrong >= 0:
        starts = load(shared, SPLITS) + 4 * place * load(shared, SPLIT_COUNT)
        split = int64(load_as(starts, wrong, np.int32))
        text = (
            "column %lld: row split %lld is %lld, less than one before it or more than %lld entries"
        )
        fail(frame, INVALID_ARGUMENT, text, place, wrong, split, load(shared, ENTRY_COUNT))
        return
    entry = -1 - wrong
    number = int64(load_as(load(shared, ENTRIES), entry, np.int32))
    keys = load(load(job, COLUMNS), COLUMN_WORDS * place + KEYS)
    text = "column %lld: unique_idxs[%lld] = %lld is not in [0, %lld), the rows"
    fail(frame, INVALID_ARGUMENT, text, place, entry, number, keys)


@jit
def scatter_columns(job: int) -> None:
    """Does tasks until all have been begun."""
    state, shared, parts = load(job, STATE), load(job, SHARED), load(job, PARTS)
    splits = load(shared, SPLIT_COUNT)
    args = stack_words(scatter.ARGUMENT_WORDS)
    task = jobs.next_task(job)
    while task >= 0:
        place, part = task // parts, task % parts
        column, given = column_at(state, place), load(job, COLUMNS) + 8 * COLUMN_WORDS * place
        wrong = _first_wrong(job, place)
        if part == 0:
            store(given, WRONG, wrong)
        if wrong == _NOTHING:
            keys, dim = load(given, KEYS), load(given, DIM)
            item, sum_item = body(state, ITEM), max(body(state, ITEM), int64(4))
            store(args, scatter.BAGS, splits - 1)
            store(args, scatter.TOP, load(job, TOP) + load(given, FIRST) * item)
            store(args, scatter.TOP_BYTES, load(job, TOP_BYTES))
            store(args, scatter.STARTS, load(shared, SPLITS) + 4 * place * splits)
            store(args, scatter.PLACES, load(shared, ENTRIES))
            store(args, scatter.SUMS, load(given, SUMS))
            store(args, scatter.SUM_BYTES, dim * sum_item)
            store(args, scatter.LOW, keys * part // parts)
            store(args, scatter.HIGH, keys * (part + 1) // parts)
            store(args, scatter.COMBINER, load(column, words.COMBINER))
            store(args, scatter.WEIGHTS, load(job, WEIGHTS))
            store(args, scatter.ROWS, load(given, OUT))
            call_by_pieces(column, dim, args, int64(scatter.FIRST), int64(scatter.END))
        task = jobs.next_task(job)


@jit
def _place_sums(frame: int, job: int, total: int) -> None:
    """Finds where sums go: to the result itself, or for half types to room of their own."""
    state, columns = load(job, STATE), load(job, COLUMNS)
    is_half = body(state, ITEM) == 2
    sums = scratch(frame, total if is_half else int64(0), np.float32)
    if failed(frame):
        return
    address = sums.ctypes.data
    for index in range(body(state, COUNT)):
        column = columns + 8 * COLUMN_WORDS * index
        store(column, SUMS, address if is_half else load(column, OUT))
        address += 4 * load(column, KEYS) * load(column, DIM)


@jit
def _widen_weights(frame: int, job: int, shared: int) -> None:
    """Brings the entries' weights to the compute dtype."""
    state = load(job, STATE)
    store(job, WEIGHTS, load(shared, ENTRY_WEIGHTS))
    if body(state, ITEM) != 2 or body(state, WEIGHTED_COUNT) == 0:
        return
    weights = scratch(frame, load(shared, ENTRY_COUNT), np.float32)
    if failed(frame):
        return
    for k in range(weights.shape[0]):
        weights[k] = weight_at(load(shared, ENTRY_WEIGHTS), k, body(state, KIND))
    store(job, WEIGHTS, weights.ctypes.data)


@jit
def _compute(frame: int, job: int, shared: int, slot: int) -> None:
    ctx, state = context(frame), load(job, STATE)
    count, pool = body(state, COUNT), body(state, POOL)
    batch = load(shared, SPLIT_COUNT) - 1
    width = take_top(frame, job, slot, batch)
    columns = scratch(frame, COLUMN_WORDS * count, np.int64)
    if failed(frame):
        return
    store(job, COLUMNS, columns.ctypes.data)
    total = take_columns(frame, job, ctx, width)
    _place_sums(frame, job, total)
    _widen_weights(frame, job, shared)
    if failed(frame):
        return
    entries = load(shared, ENTRY_COUNT)
    cost = count * _COLUMN_NS + entries * (_ENTRY_NS + width // (2 * count))
    helpers = pool if cost > _PARALLEL_NS else int64(0)
    parts = int64(1)
    if helpers != 0:
        threads = load(pool, THREADS) + 1
        parts = max((2 * threads) // count, int64(1))
    store(job, PARTS, parts)
    store(job, threads_layout.KERNEL, load(state, 0))
    store(job, threads_layout.NEXT, 0)
    store(job, threads_layout.TASKS, count * parts)
    slot_of_job = jobs.open_job(helpers, job)
    scatter_columns(job)
    jobs.close_job(helpers, slot_of_job)
    for index in range(count):
        wrong = load(load(job, COLUMNS), COLUMN_WORDS * index + WRONG)
        if wrong != _NOTHING:
            _explain(frame, job, int64(index), wrong)
            return


def scatter_grads(frame: int) -> None:
    """The kernel body."""
    state = kernel_state(frame)
    count = body(state, COUNT)
    shared, job, slot = stack_words(SHARED_WORDS), stack_words(CALL_WORDS), stack_words(1)
    store(slot, 0, 0)
    store(job, STATE, state)
    store(job, SHARED, shared)
    weighted = body(state, WEIGHTED_COUNT) != 0
    take_shared(frame, context(frame), count + 1, shared, body(state, LOOKUPS), weighted)
    if not failed(frame):
        _compute(frame, job, shared, slot)
    release_shared(shared)
    if load(slot, 0) != 0:
        tf_delete_tensor(load(slot, 0))
