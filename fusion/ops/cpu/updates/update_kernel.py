"""The kernel of FusedEmbeddingUpdate.

Variables are locked from before their sizes are known until all is done: no update is lost. What
may fail does so before the first of them changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.cpu_ops.elements import integer_at
from fusion.cpu_ops.updates.grouping import (
    bits_of,
    list_rows,
    mark_rows,
    number_rows,
    pack_entries,
    pack_rows,
    sort_entries,
    unpack_rows,
)
from fusion.cpu_ops.updates.layout import SUM_BY_IDS, Block, Instruction, ValueSource
from fusion.ops.cpu.updates.inputs import release_inputs, take_inputs, tensor_count
from fusion.ops.cpu.updates.layout import Code, UpdateJob, UpdateState, Worker
from fusion.ops.cpu.updates.tasks import (
    close_worker,
    code_with,
    code_without,
    do_tasks,
    execute_without,
    open_worker,
    set_dim,
    work,
)
from fusion.ops.cpu.updates.variables import (
    begin_tensors,
    end_tensors,
    find_all,
    let_go_of_all,
    lock_all,
    take_all,
    unlock_all,
)
from fusion.runtime.native.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, fail
from fusion.runtime.native.frame import context, failed, kernel_state, scratch_bytes
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load, stack_words, store
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Job, Pool

#: Elements of a block's rows, and of its entries on average, at most.
_BLOCK_ELEMENTS, _BLOCK_ENTRY_ELEMENTS = 1024, 4096

#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000

#: Where the values of a row are summed and only rows of ids change, rows are numbered in place of
#: sorted if so many elements at most are summed into rows that are so many times as many as the ids
#: at most: their numbers are cleared, and all is one block.
_NUMBERED_ELEMENTS, _NUMBERED_ROWS = 8192, 32

#: All rows are computed and those of ids kept if the elements are so many for each id at most, and
#: so many in all: one thread sums.
_MARKED_ELEMENTS, _MOST_MARKED = 8, 1 << 20

#: What takes so many words at most is on the stack: to allocate takes longer than a small update.
_STACK_WORDS = 4096

#: Tasks of a thread, so that all end at about the same time.
_TASKS_PER_THREAD = 16


@jit
def _choose_block(dim: int, entries: int, rows: int) -> int:
    """How many bits the number of rows of a block has."""
    bits = int64(0)
    while (dim << (bits + 1)) <= _BLOCK_ELEMENTS:
        bits += 1
    while bits > 0 and (entries << bits) * dim > rows * _BLOCK_ENTRY_ELEMENTS:
        bits -= 1
    return bits


@jit
def _most_entries(job: int) -> int:
    """The most entries of a block."""
    state, bits, most = load(job, UpdateJob.state), load(job, UpdateJob.block_bits), int64(0)
    if load(state, UpdateState.deduplicates) != 0:
        return min(int64(1) << bits, load(job, UpdateJob.entry_count))
    if load(state, UpdateState.is_sweep) == 0:
        starts, end = load(job, UpdateJob.starts), load(job, UpdateJob.distinct_count)
        for index in range(load(job, UpdateJob.block_count)):
            first = load(starts, index << bits)
            most = max(most, load(starts, min((index + 1) << bits, end)) - first)
        return most
    entries, shift = load(job, UpdateJob.entries), load(job, UpdateJob.shift) + bits
    count, last = int64(0), int64(-1)
    for index in range(load(job, UpdateJob.entry_count)):
        block = load(entries, index) >> shift
        count = count + 1 if block == last else int64(1)
        last = block
        most = max(most, count)
    return most


@jit
def _fail_id(frame: int, job: int, ids: int, index: int) -> None:
    state, rows = load(job, UpdateJob.state), load(job, UpdateJob.row_count)
    number = integer_at(ids, index, load(state, UpdateState.ids_dtype))
    least = -rows if load(state, UpdateState.wraps_negative) != 0 else int64(0)
    text = "ids[%lld] = %lld is not in [%lld, %lld), the rows"
    fail(frame, INVALID_ARGUMENT, text, index, number, least, rows)


@jit
def _group(frame: int, job: int, ids: int) -> None:
    """Groups the entries by their rows, and decides on blocks."""
    state, count = load(job, UpdateJob.state), load(job, UpdateJob.id_count)
    rows, dim = load(job, UpdateJob.row_count), load(state, UpdateState.dim)
    is_sweep = load(state, UpdateState.is_sweep) != 0
    sums_values = load(state, UpdateState.deduplicates) != 0
    shift, row_bits = bits_of(count), bits_of(rows)
    if shift + row_bits > 62:
        fail(frame, RESOURCE_EXHAUSTED, "no memory for %lld entries of %lld rows", count, rows)
        return
    lists = int64(2)
    if sums_values or not is_sweep:
        lists += 3 if sums_values else 2
    memory = scratch_bytes(frame, 8 * (lists * count + 1))
    if failed(frame):
        return
    buffer, kind = memory + 8 * count, load(state, UpdateState.ids_dtype)
    drops = load(state, UpdateState.needs_rows) == 0
    wraps = _wraps_of(job)
    kept = pack_entries(ids, kind, count, rows, shift, wraps, drops, memory)
    if kept < 0:
        _fail_id(frame, job, ids, -1 - kept)
        return
    store(job, UpdateJob.shift, shift)
    store(job, UpdateJob.entry_count, kept)
    store(job, UpdateJob.entries, sort_entries(memory, buffer, kept, shift, row_bits))
    if sums_values or not is_sweep:
        _list_rows(job, memory + 16 * count)
    if not is_sweep:
        rows = load(job, UpdateJob.distinct_count)
    bits = _choose_block(dim, load(job, UpdateJob.entry_count), rows)
    store(job, UpdateJob.block_bits, bits)
    store(job, UpdateJob.block_count, (rows + (int64(1) << bits) - 1) >> bits)
    store(job, UpdateJob.most_entries, _most_entries(job))


@jit
def _list_rows(job: int, memory: int) -> None:
    """Lists the distinct rows of entries; where values are summed, lets each have one entry.

    Args:
      memory: the address of int64 [2 * id_count + 1], or [3 * id_count + 1] where they are.
    """
    count, shift = load(job, UpdateJob.id_count), load(job, UpdateJob.shift)
    entries, starts = load(job, UpdateJob.entries), memory + 8 * count
    distinct = list_rows(entries, load(job, UpdateJob.entry_count), shift, memory, starts)
    store(job, UpdateJob.rows, memory)
    store(job, UpdateJob.starts, starts)
    store(job, UpdateJob.distinct_count, distinct)
    if load(load(job, UpdateJob.state), UpdateState.deduplicates) != 0:
        store(job, UpdateJob.ungrouped, entries)
        store(job, UpdateJob.entries, starts + 8 * (count + 1))
        store(job, UpdateJob.entry_count, distinct)
        pack_rows(memory, distinct, shift, load(job, UpdateJob.entries))


@jit
def _wraps_of(job: int) -> int:
    """What is added to ids < 0."""
    wraps = load(load(job, UpdateJob.state), UpdateState.wraps_negative) != 0
    return load(job, UpdateJob.row_count) if wraps else int64(0)


@jit
def _marks_rows(job: int) -> bool:
    """Whether all rows are computed, and those of ids kept."""
    state, rows = load(job, UpdateJob.state), load(job, UpdateJob.row_count)
    dim, most = load(state, UpdateState.dim), int64(_MARKED_ELEMENTS)
    return (
        load(state, UpdateState.is_sweep) == 0
        and load(state, UpdateState.deduplicates) != 0
        and rows * dim <= _MOST_MARKED
        and rows * min(dim, most) <= load(job, UpdateJob.id_count) * most
    )


@jit
def _mark(frame: int, job: int, ids: int, memory: int) -> None:
    """Marks the rows that ids have, and sums their values; blocks are of all rows."""
    state, count = load(job, UpdateJob.state), load(job, UpdateJob.id_count)
    rows, kind = load(job, UpdateJob.row_count), load(state, UpdateState.ids_dtype)
    wraps, drops = _wraps_of(job), load(state, UpdateState.needs_rows) == 0
    kept = mark_rows(ids, kind, count, rows, wraps, drops, memory)
    if kept < 0:
        _fail_id(frame, job, ids, -1 - kept)
        return
    store(job, UpdateJob.marks, memory)
    store(job, UpdateJob.sums, memory + 8 * _mark_words(job))
    if kept > 0:
        _sum_by_ids(job, ids)
    rows = rows if kept > 0 else int64(0)
    bits = _choose_block(load(state, UpdateState.dim), rows, rows)
    _put_blocks(job, rows, bits)


@jit
def _sum_by_ids(job: int, ids: int) -> None:
    """Sums the values of each row into those of `UpdateJob.sums`."""
    state = load(job, UpdateJob.state)
    values = load(state, UpdateState.value_count)
    block, instruction = stack_words(Block.SIZE), stack_words(Instruction.SIZE)
    first = load(job, UpdateJob.sums) + 8 * values
    for k in range(values):
        store(load(job, UpdateJob.sums), k, first + 8 * k * _sum_words(job))
    store(instruction, Instruction.opcode, SUM_BY_IDS)
    store(block, Block.instructions, instruction)
    store(block, Block.instruction_count, 1)
    store(block, Block.registers, load(job, UpdateJob.sums))
    store(block, Block.dim, load(state, UpdateState.dim))
    store(block, Block.row_count, load(job, UpdateJob.row_count))
    store(block, Block.values, load(job, UpdateJob.values))
    store(block, Block.ids, ids)
    store(block, Block.ids_dtype, load(state, UpdateState.ids_dtype))
    store(block, Block.id_count, load(job, UpdateJob.id_count))
    store(block, Block.wraps, _wraps_of(job))
    for k in range(values):
        store(instruction, Instruction.out, k)
        store(instruction, Instruction.left, k)
        call_at(load(state, UpdateState.kernel_of_blocks), block)


@jit
def _numbers_rows(job: int) -> bool:
    """Whether rows are numbered rather than sorted."""
    state, count = load(job, UpdateJob.state), load(job, UpdateJob.id_count)
    return (
        load(state, UpdateState.is_sweep) == 0
        and load(state, UpdateState.deduplicates) != 0
        and count * load(state, UpdateState.dim) <= _NUMBERED_ELEMENTS
        and load(job, UpdateJob.row_count) <= count * _NUMBERED_ROWS
    )


@jit
def _number(frame: int, job: int, ids: int, memory: int) -> None:
    """Numbers the rows that ids have; all that have ids are one block."""
    state, count = load(job, UpdateJob.state), load(job, UpdateJob.id_count)
    rows, kind = load(job, UpdateJob.row_count), load(state, UpdateState.ids_dtype)
    drops, shift = load(state, UpdateState.needs_rows) == 0, bits_of(count)
    entries, listed = memory + 8 * (count + 1), memory + 8 * (2 * count + 2)
    numbers, wraps = listed + 8 * count, _wraps_of(job)
    distinct = number_rows(ids, kind, count, rows, shift, wraps, drops, memory, numbers, entries)
    if distinct < 0:
        _fail_id(frame, job, ids, -1 - distinct)
        return
    unpack_rows(entries, distinct, shift, listed)
    store(job, UpdateJob.shift, shift)
    store(job, UpdateJob.ungrouped, memory)
    store(job, UpdateJob.rows, listed)
    store(job, UpdateJob.entries, entries)
    _put_blocks(job, distinct, bits_of(distinct))


@jit
def _mark_words(job: int) -> int:
    return (load(job, UpdateJob.row_count) + 1) // 2


@jit
def _sum_words(job: int) -> int:
    """The words of the sums of a value."""
    state = load(job, UpdateJob.state)
    size = load(state, UpdateState.dim) * load(state, UpdateState.item_bytes)
    return (load(job, UpdateJob.row_count) * size + 7) // 8


@jit
def _listed_words(job: int) -> int:
    """The words that `_mark` or `_number` needs; 0 if rows are neither marked nor numbered."""
    if _marks_rows(job):
        values = load(load(job, UpdateJob.state), UpdateState.value_count)
        return _mark_words(job) + values * (1 + _sum_words(job))
    if _numbers_rows(job):
        return _mark_words(job) + 3 * load(job, UpdateJob.id_count) + 2
    return int64(0)


@jit
def _put_blocks(job: int, rows: int, bits: int) -> None:
    """Lets blocks have 1 << bits of so many rows, each with an entry."""
    store(job, UpdateJob.distinct_count, rows)
    store(job, UpdateJob.entry_count, rows)
    store(job, UpdateJob.most_entries, min(rows, int64(1) << bits))
    store(job, UpdateJob.block_bits, bits)
    store(job, UpdateJob.block_count, (rows + (int64(1) << bits) - 1) >> bits)


@jit
def _try_with_zeros(job: int, worker: int) -> bool:
    """Whether a row of the table stays where slots are zero and nothing has entries.

    The trial is a row of one element, -0, which nothing else than what leaves all alone leaves so.
    """
    state = load(job, UpdateJob.state)
    count, item = load(state, UpdateState.variable_count), load(state, UpdateState.item_bytes)
    trial, addresses = stack_words(count), stack_words(count)
    for k in range(count):
        store(trial, k, 0)
        store(addresses, k, trial + 8 * k)
    minus_zero = int64(-(2**63)) if item == 8 else int64(2**31)
    store(trial, 0, minus_zero)
    variables, dim = load(job, UpdateJob.variables), load(state, UpdateState.dim)
    store(job, UpdateJob.variables, addresses)
    set_dim(worker, int64(1))
    execute_without(worker, job, int64(0), int64(1))
    set_dim(worker, dim)
    store(job, UpdateJob.variables, variables)
    changed = load(trial, 0) ^ minus_zero
    for k in range(1, count):
        changed |= load(trial, k)
    return changed == 0


@jit
def _cost(job: int) -> int:
    """Nanoseconds that one thread takes, roughly."""
    state = load(job, UpdateJob.state)
    with_entries = load(code_with(state), Code.instruction_count)
    without = load(code_without(state), Code.instruction_count)
    dim = load(state, UpdateState.dim)
    if load(job, UpdateJob.marks) != 0:
        return load(job, UpdateJob.row_count) * dim * with_entries // 8
    elements = load(job, UpdateJob.entry_count) * (dim + 16) * with_entries
    if load(state, UpdateState.deduplicates) != 0:
        elements += load(job, UpdateJob.id_count) * (dim + 16)
    if load(state, UpdateState.is_sweep) != 0:
        elements += load(job, UpdateJob.row_count) * dim * without
    return elements // 8


@jit
def _run(frame: int, job: int) -> None:
    """Executes the program in all blocks."""
    state, worker = load(job, UpdateJob.state), stack_words(Worker.SIZE)
    if load(job, UpdateJob.block_count) == 0:
        return
    if not open_worker(worker, job):
        fail(frame, RESOURCE_EXHAUSTED, "no memory for blocks of rows")
        return
    if load(state, UpdateState.may_skip) != 0:
        store(job, UpdateJob.skips, int64(_try_with_zeros(job, worker)))
    pool, blocks = load(state, UpdateState.pool), load(job, UpdateJob.block_count)
    helpers = pool if blocks > 1 and _cost(job) > _PARALLEL_NS else int64(0)
    tasks = int64(1)
    if helpers != 0:
        tasks = min(_TASKS_PER_THREAD * (load(pool, Pool.thread_count) + 1), blocks)
    step = (blocks + tasks - 1) // tasks
    store(job, UpdateJob.task_blocks, step)
    store(job, Job.kernel, load(state, UpdateState.kernel))
    store(job, Job.next_task, 0)
    store(job, Job.task_count, (blocks + step - 1) // step)
    slot = jobs.open_job(helpers, job)
    do_tasks(worker, job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    close_worker(worker)


@jit
def _update_locked(frame: int, job: int, ids: int, tensors: int) -> None:
    state = load(job, UpdateJob.state)
    rows = take_all(frame, state, tensors, load(job, UpdateJob.variables))
    if rows < 0:
        return
    store(job, UpdateJob.row_count, rows)
    store(job, UpdateJob.ids, ids)
    words = _listed_words(job)
    memory = stack_words(words if words <= _STACK_WORDS else int64(0))
    if words > _STACK_WORDS:
        memory = scratch_bytes(frame, 8 * words)
    if failed(frame):
        return
    if _marks_rows(job):
        _mark(frame, job, ids, memory)
    elif _numbers_rows(job):
        _number(frame, job, ids, memory)
    else:
        _group(frame, job, ids)
    if not failed(frame):
        _run(frame, job)


@jit
def _update(frame: int, job: int, ids: int) -> None:
    """Finds and locks the variables, and updates them."""
    state = load(job, UpdateJob.state)
    access, count = state + 8 * UpdateState.access, load(state, UpdateState.variable_count)
    variables, tensors = stack_words(count), stack_words(OBJECT_WORDS * count)
    holder = stack_words(int64(OBJECT_WORDS))
    if find_all(frame, access, count, variables):
        lock_all(context(frame), state, holder)
        begin_tensors(access, tensors, count)
        _update_locked(frame, job, ids, tensors)
        end_tensors(access, tensors, count)
        unlock_all(access, holder)
    let_go_of_all(access, variables, count)


def update(frame: int) -> None:
    """The kernel body."""
    state, job = kernel_state(frame), stack_words(UpdateJob.SIZE)
    for k in range(UpdateJob.SIZE):
        store(job, k, 0)
    count = tensor_count(state)
    tensors = stack_words(count)
    for k in range(count):
        store(tensors, k, 0)
    store(job, UpdateJob.state, state)
    store(job, UpdateJob.variables, stack_words(load(state, UpdateState.variable_count)))
    values = load(state, UpdateState.value_count)
    store(job, UpdateJob.values, stack_words(ValueSource.SIZE * values))
    store(job, UpdateJob.scalars, stack_words(load(state, UpdateState.scalar_count)))
    store(job, UpdateJob.results, stack_words(load(state, UpdateState.result_count)))
    ids = take_inputs(frame, job, tensors)
    if not failed(frame):
        _update(frame, job, ids)
    release_inputs(tensors, count)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """The kernel body, and what threads do that help with it."""
    return update, work
