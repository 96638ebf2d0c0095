"""The kernel of FusedEmbeddingUpdate.

Variables are locked from before their sizes are known until all is done: no update is lost. What
may fail does so before the first of them changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.cpu_ops.elements import integer_at
from fusion.ops.updates.cpu.inputs import release_inputs, take_inputs, tensor_count
from fusion.ops.updates.cpu.layout import UpdateJob, UpdateState, Worker
from fusion.ops.updates.cpu.tasks import (
    close_worker,
    do_tasks,
    execute_without,
    open_worker,
    set_dim,
    work,
)
from fusion.ops.updates.cpu.variables import (
    begin_tensors,
    end_tensors,
    find_all,
    let_go_of_all,
    lock_all,
    take_all,
    unlock_all,
)
from fusion.ops.updates.cpu_kernels.grouping import (
    RowIds,
    bits_of,
    list_rows,
    mark_rows,
    number_rows,
    pack_entries,
    pack_rows,
    sort_entries,
    unpack_rows,
)
from fusion.ops.updates.cpu_kernels.layout import SUM_BY_IDS, Block, Instruction, ValueSource
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at
from fusion.runtime.native.pointers import (
    as_record,
    as_words,
    clear,
    stack_record,
    stack_records,
    stack_words,
)
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS
from fusion.runtime.threads import jobs
from fusion.runtime.threads.layout import Pool

#: Elements of a block's rows, and of its entries on average, at most.
_BLOCK_ELEMENTS, _BLOCK_ENTRY_ELEMENTS = 1024, 4096

#: Work that takes fewer nanoseconds is done before another thread has woken up.
_PARALLEL_NS = 60_000

#: Where the values of a row are summed and only rows of ids change, rows are numbered in place of
#: sorted if so many elements at most are summed into rows that are so many times as many as the ids
#: at most: their numbers are cleared, and all is one block.
_NUMBERED_ELEMENTS, _NUMBERED_ROWS = 8192, 32

#: All rows are computed, but only those of ids are written, if there are at most so many elements
#: for each id, and so many in all: one thread sums.
_MARKED_ELEMENTS, _MAX_MARKED = 8, 1 << 20

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
def _max_entries(job: UpdateJob) -> int:
    """The maximum number of entries of a block."""
    state, bits, result = job.state, job.block_bits, int64(0)
    if state.deduplicates != 0:
        return min(int64(1) << bits, job.entry_count)
    if state.is_sweep == 0:
        starts, end = job.starts, job.distinct_count
        for index in range(job.block_count):
            first = starts[index << bits]
            result = max(result, starts[min((index + 1) << bits, end)] - first)
        return result
    entries, shift = job.entries, job.shift + bits
    count, last = int64(0), int64(-1)
    for index in range(job.entry_count):
        block = entries[index] >> shift
        count = count + 1 if block == last else int64(1)
        last = block
        result = max(result, count)
    return result


@jit
def _fail_id(frame: int, job: UpdateJob, ids: int, index: int) -> None:
    state, rows = job.state, job.row_count
    number = integer_at(ids, index, state.ids_dtype)
    min_row = -rows if state.wraps_negative != 0 else int64(0)
    text = "ids[%lld] = %lld is not in [%lld, %lld), the rows"
    op.fail(frame, op.INVALID_ARGUMENT, text, index, number, min_row, rows)


@jit
def _group(frame: op.Frame, job: UpdateJob, ids: int) -> None:
    """Groups the entries by their rows, and decides on blocks."""
    state, count = job.state, job.id_count
    rows, dim = job.row_count, state.dim
    is_sweep = state.is_sweep != 0
    sums_values = state.deduplicates != 0
    shift, row_bits = bits_of(count), bits_of(rows)
    if shift + row_bits > 62:
        op.fail(
            frame, op.RESOURCE_EXHAUSTED, "no memory for %lld entries of %lld rows", count, rows
        )
        return
    lists = int64(2)
    if sums_values or not is_sweep:
        lists += 3 if sums_values else 2
    memory = as_words(op.scratch_bytes(frame, 8 * (lists * count + 1)))
    if op.failed(frame):
        return
    buffer = memory + 8 * count
    entry_count = pack_entries(_ids_of(job, ids), shift, memory)
    if entry_count < 0:
        _fail_id(frame, job, ids, -1 - entry_count)
        return
    job.shift = shift
    job.entry_count = entry_count
    job.entries = as_words(sort_entries(memory, buffer, entry_count, shift, row_bits))
    if sums_values or not is_sweep:
        _list_rows(job, as_words(memory + 16 * count))
    if not is_sweep:
        rows = job.distinct_count
    bits = _choose_block(dim, job.entry_count, rows)
    job.block_bits = bits
    job.block_count = (rows + (int64(1) << bits) - 1) >> bits
    job.max_entries = _max_entries(job)


@jit
def _list_rows(job: UpdateJob, memory: Words) -> None:
    """Lists the distinct rows of entries; where values are summed, lets each have one entry.

    Args:
      memory: the address of int64 [2 * id_count + 1], or [3 * id_count + 1] where they are.
    """
    count, shift = job.id_count, job.shift
    entries, starts = job.entries, as_words(memory + 8 * count)
    distinct = list_rows(entries, job.entry_count, shift, memory, starts)
    job.rows = memory
    job.starts = starts
    job.distinct_count = distinct
    if job.state.deduplicates != 0:
        job.ungrouped = entries
        job.entries = as_words(starts + 8 * (count + 1))
        job.entry_count = distinct
        pack_rows(memory, distinct, shift, job.entries)


@jit
def _wraps_of(job: UpdateJob) -> int:
    """What is added to ids < 0."""
    wraps = job.state.wraps_negative != 0
    return job.row_count if wraps else int64(0)


@jit
def _ids_of(job: UpdateJob, ids: int) -> RowIds:
    """The ids at an address, as they are grouped."""
    state, wraps = job.state, _wraps_of(job)
    drops = state.needs_rows == 0
    return RowIds(ids, state.ids_dtype, job.id_count, job.row_count, wraps, drops)


@jit
def _marks_rows(job: UpdateJob) -> bool:
    """Whether all rows are computed, but only those of ids are written."""
    state, rows = job.state, job.row_count
    dim, max_elements = state.dim, int64(_MARKED_ELEMENTS)
    return (
        state.is_sweep == 0
        and state.deduplicates != 0
        and rows * dim <= _MAX_MARKED
        and rows * min(dim, max_elements) <= job.id_count * max_elements
    )


@jit
def _mark(frame: int, job: UpdateJob, ids: int, memory: int) -> None:
    """Marks the rows that ids have, and sums their values; blocks are of all rows."""
    rows, id_count = job.row_count, mark_rows(_ids_of(job, ids), memory)
    if id_count < 0:
        _fail_id(frame, job, ids, -1 - id_count)
        return
    job.marks = memory
    job.sums = as_words(memory + 8 * _mark_words(job))
    if id_count > 0:
        _sum_by_ids(job, ids)
    rows = rows if id_count > 0 else int64(0)
    bits = _choose_block(job.state.dim, rows, rows)
    _put_blocks(job, rows, bits)


@jit
def _sum_by_ids(job: UpdateJob, ids: int) -> None:
    """Sums the values of each row into those of `UpdateJob.sums`."""
    state = job.state
    values = state.value_count
    block = stack_record(Block)
    instruction = stack_record(Instruction)
    first = job.sums + 8 * values
    for k in range(values):
        job.sums[k] = first + 8 * k * _sum_words(job)
    instruction.opcode = SUM_BY_IDS
    block.instructions = instruction
    block.instruction_count = 1
    block.registers = job.sums
    block.dim = state.dim
    block.row_count = job.row_count
    block.values = job.values
    block.ids = ids
    block.ids_dtype = state.ids_dtype
    block.id_count = job.id_count
    block.wraps = _wraps_of(job)
    for k in range(values):
        instruction.out = k
        instruction.left = k
        call_at(state.kernel_of_blocks, block)


@jit
def _numbers_rows(job: UpdateJob) -> bool:
    """Whether rows are numbered rather than sorted."""
    state, count = job.state, job.id_count
    return (
        state.is_sweep == 0
        and state.deduplicates != 0
        and count * state.dim <= _NUMBERED_ELEMENTS
        and job.row_count <= count * _NUMBERED_ROWS
    )


@jit
def _number(frame: int, job: UpdateJob, ids: int, memory: Words) -> None:
    """Numbers the rows that ids have; all that have ids are one block."""
    count, shift = job.id_count, bits_of(job.id_count)
    entries, listed = as_words(memory + 8 * (count + 1)), memory + 8 * (2 * count + 2)
    distinct = number_rows(_ids_of(job, ids), shift, memory, listed + 8 * count, entries)
    if distinct < 0:
        _fail_id(frame, job, ids, -1 - distinct)
        return
    unpack_rows(entries, distinct, shift, listed)
    job.shift = shift
    job.ungrouped = memory
    job.rows = as_words(listed)
    job.entries = entries
    _put_blocks(job, distinct, bits_of(distinct))


@jit
def _mark_words(job: UpdateJob) -> int:
    return (job.row_count + 1) // 2


@jit
def _sum_words(job: UpdateJob) -> int:
    """The words of the sums of a value."""
    state = job.state
    size = state.dim * state.item_bytes
    return (job.row_count * size + 7) // 8


@jit
def _listed_words(job: UpdateJob) -> int:
    """The words that `_mark` or `_number` needs; 0 if rows are neither marked nor numbered."""
    if _marks_rows(job):
        values = job.state.value_count
        return _mark_words(job) + values * (1 + _sum_words(job))
    if _numbers_rows(job):
        return _mark_words(job) + 3 * job.id_count + 2
    return int64(0)


@jit
def _put_blocks(job: UpdateJob, rows: int, bits: int) -> None:
    """Makes blocks of 1 << bits rows, each row with an entry."""
    job.distinct_count = rows
    job.entry_count = rows
    job.max_entries = min(rows, int64(1) << bits)
    job.block_bits = bits
    job.block_count = (rows + (int64(1) << bits) - 1) >> bits


@jit
def _try_with_zeros(job: UpdateJob, worker: Worker) -> bool:
    """Whether a row of the table stays where slots are zero and nothing has entries.

    The trial is a row of one element, -0, which nothing else than what leaves all alone leaves so.
    """
    state = job.state
    count, item = state.variable_count, state.item_bytes
    trial, addresses = stack_words(count), stack_words(count)
    for k in range(count):
        trial[k] = 0
        addresses[k] = trial + 8 * k
    minus_zero = int64(-(2**63)) if item == 8 else int64(2**31)
    trial[0] = minus_zero
    variables, dim = job.variables, state.dim
    job.variables = addresses
    set_dim(worker, int64(1))
    execute_without(worker, job, int64(0), int64(1))
    set_dim(worker, dim)
    job.variables = as_words(variables)
    changed = trial[0] ^ minus_zero
    for k in range(1, count):
        changed |= trial[k]
    return changed == 0


@jit
def _cost(job: UpdateJob) -> int:
    """Nanoseconds that one thread takes, roughly."""
    state = job.state
    with_entries = state.with_entries.instruction_count
    without = state.without.instruction_count
    dim = state.dim
    if job.marks != 0:
        return job.row_count * dim * with_entries // 8
    elements = job.entry_count * (dim + 16) * with_entries
    if state.deduplicates != 0:
        elements += job.id_count * (dim + 16)
    if state.is_sweep != 0:
        elements += job.row_count * dim * without
    return elements // 8


@jit
def _run(frame: op.Frame, job: UpdateJob) -> None:
    """Executes the program in all blocks."""
    state, worker = job.state, stack_record(Worker)
    if job.block_count == 0:
        return
    if not open_worker(worker, job):
        op.fail(frame, op.RESOURCE_EXHAUSTED, "no memory for blocks of rows")
        return
    if state.may_skip != 0:
        job.skips = int64(_try_with_zeros(job, worker))
    pool, blocks = state.pool, job.block_count
    helpers = as_record(Pool, pool if blocks > 1 and _cost(job) > _PARALLEL_NS else int64(0))
    tasks = int64(1)
    if helpers != 0:
        tasks = min(_TASKS_PER_THREAD * (pool.thread_count + 1), blocks)
    step = (blocks + tasks - 1) // tasks
    job.task_blocks = step
    job.kernel = state.kernel
    job.next_task = 0
    job.task_count = (blocks + step - 1) // step
    slot = jobs.open_job(helpers, job)
    do_tasks(worker, job, int64(0))
    jobs.close_job(helpers, slot)
    jobs.count_helpers(frame, job)
    close_worker(worker)


@jit
def _update_locked(frame: op.Frame, job: UpdateJob, ids: int, tensors: int) -> None:
    state = job.state
    rows = take_all(frame, state, tensors, job.variables)
    if rows < 0:
        return
    job.row_count = rows
    job.ids = ids
    words = _listed_words(job)
    memory = stack_words(words if words <= _STACK_WORDS else int64(0))
    if words > _STACK_WORDS:
        memory = as_words(op.scratch_bytes(frame, 8 * words))
    if op.failed(frame):
        return
    if _marks_rows(job):
        _mark(frame, job, ids, memory)
    elif _numbers_rows(job):
        _number(frame, job, ids, memory)
    else:
        _group(frame, job, ids)
    if not op.failed(frame):
        _run(frame, job)


@jit
def _update(frame: op.Frame, job: UpdateJob, ids: int) -> None:
    """Finds and locks the variables, and updates them."""
    state = job.state
    access, count = state.access, state.variable_count
    variables, tensors = stack_words(count), stack_words(OBJECT_WORDS * count)
    holder = stack_words(int64(OBJECT_WORDS))
    if find_all(frame, access, count, variables):
        lock_all(frame.context, state, holder)
        begin_tensors(access, tensors, count)
        _update_locked(frame, job, ids, tensors)
        end_tensors(access, tensors, count)
        unlock_all(access, holder)
    let_go_of_all(access, variables, count)


def update(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(UpdateState, frame.state)
    job = stack_record(UpdateJob)
    clear(job)
    count = tensor_count(state)
    tensors = stack_words(count)
    for k in range(count):
        tensors[k] = 0
    job.state = state
    job.variables = stack_words(state.variable_count)
    values = state.value_count
    job.values = stack_records(ValueSource, values)
    job.scalars = stack_words(state.scalar_count)
    job.results = stack_words(state.result_count)
    ids = take_inputs(frame, job, tensors)
    if not op.failed(frame):
        _update(frame, job, ids)
    release_inputs(tensors, count)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """The kernel body, and the function of helper threads."""
    return update, work, UpdateJob
