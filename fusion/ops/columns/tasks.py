"""The tasks of a call of an op that combines rows, and how threads share them.

See `lookup_kernel`.
"""

from __future__ import annotations

from typing import Any

from fusion.cpu_ops import column_words as words
from fusion.cpu_ops import pieces
from fusion.cpu_ops.columns import element_range, list_entries
from fusion.cpu_ops.elements import Batch
from fusion.cpu_ops.vectors import fence
from fusion.ops.columns.inputs import column_at, release, take_source
from fusion.ops.columns.state import BODY, ITEM
from fusion.runtime.native.atomic import atomic_add, atomic_store
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, call_at, load, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status
from fusion.runtime.threads.jobs import next_task
from fusion.runtime.threads.layout import JOB_WORDS

#: What the tasks of a call share, by word behind those of every job: the op's context, state and
#: number of rows; the address of the result and the bytes of a row of it; whether it goes past the
#: caches; rows in a block; columns of a task and of all; where each column starts in a row, in
#: elements, int64; marks of columns, int64, and how many are set; what columns share.
(
    CTX,
    STATE,
    BATCH,
    OUT,
    OUT_BYTES,
    STREAMED,
    BLOCK,
    SPAN,
    COLUMN_COUNT,
    OFFSETS,
    MARKS,
    MARKED,
    SHARED,
) = range(JOB_WORDS, JOB_WORDS + 13)
CALL_WORDS = JOB_WORDS + 13

#: Room for entries that a thread starts with.
_FIRST_ROOM = 4096

#: A thread's memory, by word: its address, and for how many entries and rows it has room.
_MEMORY, _ROOM, _ROWS = range(3)
ROOM_WORDS = 3


@jit
def open_room(room: int) -> None:
    """Begins with no memory."""
    store(room, _MEMORY, 0)


@jit
def make_room(room: int, entries: int, rows: int) -> bool:
    """Makes room for the entries of rows, and for their order; returns whether there is any."""
    if load(room, _MEMORY) != 0 and entries <= load(room, _ROOM) and rows <= load(room, _ROWS):
        return True
    free_room(room)
    entries, rows = max(entries, int64(_FIRST_ROOM)), max(rows, int64(_FIRST_ROOM))
    size = 8 * (4 * (entries + pieces.AHEAD) + rows + 2)
    store(room, _MEMORY, c_malloc(size))
    store(room, _ROOM, entries)
    store(room, _ROWS, rows)
    return load(room, _MEMORY) != 0


@jit
def free_room(room: int) -> None:
    """Gives the memory back."""
    if load(room, _MEMORY) != 0:
        c_free(load(room, _MEMORY))
        store(room, _MEMORY, 0)


@jit
def _part(room: int, which: int) -> int:
    """The address of a part of the memory: one word for each entry."""
    return load(room, _MEMORY) + 8 * which * (load(room, _ROOM) + pieces.AHEAD)


@jit
def batch_in(room: int, column: int, source: int, first: int, count: int) -> Any:
    """The rows [first, first + count) of a column, to be listed in a thread's memory."""
    return Batch(column, source, first, count, _part(room, 0), _part(room, 4), _part(room, 1))


@jit
def order_in(room: int) -> int:
    """Room for the order of entries."""
    return _part(room, 2)


@jit
def slots_in(room: int, bits: int) -> int:
    """Room for `2**bits` int32, zero, where the order and norms of entries would be.

    As long as that is less than four times the entries that there is room for.
    """
    slots = _part(room, 2)
    for k in range((int64(1) << bits) // 2):
        store(slots, k, 0)
    return slots


@jit
def lists_in(room: int) -> tuple[int, int, int]:
    """Three lists of a word per entry, where entries, their order and norms would be."""
    return _part(room, 0), _part(room, 2), _part(room, 3)


@jit
def norms_in(room: int) -> int:
    """Room for the norms of rows."""
    return _part(room, 3)


@jit
def _has_one_each(batch: Any, count: int) -> bool:
    """Whether every row has one entry."""
    if count != batch.count:
        return False
    different = int64(0)
    for row in range(batch.count):
        different |= load(batch.starts, row) ^ row
    return different == 0


@jit
def call_by_pieces(column: int, dim: int, arguments: int, first_word: int, end_word: int) -> None:
    """Calls a column's kernels for its rows, piece by piece; the words tell them which."""
    first, piece = int64(0), load(column, words.PIECE)
    while piece > 0 and dim - first > piece:
        store(arguments, first_word, first)
        store(arguments, end_word, first + piece)
        call_at(load(column, words.WHOLE), arguments)
        first += piece
    if first < dim:
        store(arguments, first_word, first)
        store(arguments, end_word, dim)
        call_at(load(column, words.REST), arguments)


@jit
def combine(batch: Any, count: int, norms: int, out: int, job: int, arguments: int) -> None:
    """Combines listed entries into rows of the result, at an address of it."""
    column, source = batch.column, batch.source
    dim, out_bytes = load(source, words.TABLE_DIM), load(job, OUT_BYTES)
    row_bytes = dim * load(load(job, STATE), BODY + ITEM)
    places = out | out_bytes | row_bytes
    streamed = load(job, STREAMED) != 0 and places % pieces.LINE_BYTES == 0
    store(arguments, pieces.BAGS, batch.count)
    store(arguments, pieces.ADDRESSES, batch.addresses)
    store(arguments, pieces.STARTS, batch.starts)
    store(arguments, pieces.OUT, out)
    store(arguments, pieces.OUT_BYTES, out_bytes)
    store(arguments, pieces.DIM, dim)
    store(arguments, pieces.COMBINER, load(column, words.COMBINER))
    store(arguments, pieces.WEIGHTS, batch.weights)
    store(arguments, pieces.NORMS, norms)
    store(arguments, pieces.LIMIT, load(column, words.MAX_NORM))
    store(arguments, pieces.NO_NAN, load(column, words.NO_NAN))
    store(arguments, pieces.SINGLE, int64(1) if _has_one_each(batch, count) else int64(0))
    store(arguments, pieces.STREAMED, int64(1) if streamed else int64(0))
    for k in range(pieces.AHEAD):
        store(batch.addresses, count + k, load(source, words.TABLE))
    call_by_pieces(column, dim, arguments, int64(pieces.FIRST), int64(pieces.END))
    if streamed:
        fence()


@jit
def copy_rows(batch: Any) -> int:
    """Lists the rows of a matrix themselves."""
    address = load(batch.source, words.TABLE)
    step = load(batch.source, words.ROW_BYTES)
    for row in range(batch.count):
        store(batch.addresses, row, address + (batch.first + row) * step)
        store(batch.starts, row, row)
    store(batch.starts, batch.count, batch.count)
    return batch.count


@jit
def _do_column(job: int, place: int, first: int, source: int, room: int, arguments: int) -> bool:
    """Does a column of the block that starts at row `first`.

    Returns False, having done anything or nothing, if it is not as it should be.
    """
    state = load(job, STATE)
    column = column_at(state, place)
    if load(source, words.BATCH) != load(job, BATCH):
        return False
    count = min(load(job, BLOCK), load(job, BATCH) - first)
    is_copy = load(column, words.FORM) == words.COPY
    start, end = first, first + count
    if not is_copy:
        start, end = element_range(column, source, first, count)
    if end < start or not make_room(room, end - start + count, count):
        return False
    batch = batch_in(room, column, source, first, count)
    entries = copy_rows(batch) if is_copy else list_entries(batch, start, end)
    if entries < 0:
        return False
    item = load(state, BODY + ITEM)
    out = load(job, OUT) + first * load(job, OUT_BYTES) + load(load(job, OFFSETS), place) * item
    combine(batch, entries, norms_in(room), out, job, arguments)
    return True


@jit
def work(job: int) -> None:
    """Does tasks until all have been begun."""
    source = stack_words(words.SOURCE_WORDS)
    room = stack_words(ROOM_WORDS)
    arguments = stack_words(pieces.ARGUMENT_WORDS)
    open_room(room)
    status = tf_new_status()
    ctx, state, span, columns = (
        load(job, CTX),
        load(job, STATE),
        load(job, SPAN),
        load(job, COLUMN_COUNT),
    )
    spans = (columns + span - 1) // span
    task = next_task(job)
    while task >= 0:
        first, start = (task // spans) * load(job, BLOCK), (task % spans) * span
        for index in range(start, min(start + span, columns)):
            done = take_source(int64(0), ctx, state, index, source, status, load(job, SHARED))
            done = done and _do_column(job, index, first, source, room, arguments)
            release(source)
            if not done:
                atomic_store(load(job, MARKS), index, int64(1))
                atomic_add(job, MARKED, int64(1))
        task = next_task(job)
    free_room(room)
    tf_delete_status(status)
