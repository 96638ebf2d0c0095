"""The tasks of a call: blocks of rows, in which a program is executed, and how threads share them.

In a sweep a block is rows side by side, with entries or without; else it is rows that have entries,
wherever they are.
"""

from __future__ import annotations

from fusion.cpu_ops.vectors import tile_ops
from fusion.ops.updates.cpu.layout import Code, UpdateJob, UpdateState, Worker
from fusion.ops.updates.cpu_kernels.grouping import first_at
from fusion.ops.updates.cpu_kernels.layout import MARK_BYTES, Instruction
from fusion.ops.updates.cpu_kernels.zeros import is_zero
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, call_at, load, store
from fusion.runtime.native.pointers import as_record, as_words, stack_record
from fusion.runtime.threads.jobs import next_task

_LINE = 64

#: Lines of a row that are asked for before they are needed.
_LINES_AHEAD = 4

#: Bytes of variables that are in the processor's cache anyway.
_CACHED = 1 << 18

_claim = tile_ops("float32", 1, 1).claim


@jit
def _buffer_bytes(elements: int, item: int) -> int:
    """The size of a buffer: whole lines, and one more, so that buffers are not aligned alike."""
    return (elements * item + _LINE - 1) // _LINE * _LINE + _LINE


@jit
def _register_count(state: UpdateState, code: Code) -> int:
    return (
        state.variable_count
        + state.scalar_count
        + 1
        + code.scalar_buffers
        + code.row_buffers
        + code.entry_buffers
    )


@jit
def open_worker(worker: Worker, job: UpdateJob) -> bool:
    """Begins with the memory that blocks need; whether there is it."""
    state = job.state
    dim, item = state.dim, state.item_bytes
    row_bytes = _buffer_bytes(dim << job.block_bits, item)
    entry_bytes = _buffer_bytes(dim * job.max_entries, item)
    first, second = state.with_entries, state.without
    rows = max(first.row_buffers, second.row_buffers)
    scalars = max(first.scalar_buffers, second.scalar_buffers)
    words = _register_count(state, first) + _register_count(state, second)
    words += scalars + job.max_entries
    entries = first.entry_buffers
    size = rows * row_bytes + entries * entry_bytes + _LINE + 8 * words
    worker.memory = c_malloc(size)
    if worker.memory == 0:
        return False
    row_buffers = (worker.memory + _LINE - 1) // _LINE * _LINE
    entry_buffers = row_buffers + rows * row_bytes
    worker.registers_with = as_words(entry_buffers + entries * entry_bytes)
    end = worker.registers_with + 8 * _register_count(state, first)
    worker.registers_without = as_words(end)
    scalar_buffers = end + 8 * _register_count(state, second)
    worker.locals = as_words(scalar_buffers + 8 * scalars)
    for which in range(2):
        code = as_record(Code, second if which else first)
        field = Worker.registers_without if which else Worker.registers_with
        register = _put_inputs(job, load(worker, field))
        count = code.scalar_buffers
        register = _put_buffers(register, scalar_buffers, count, int64(8))
        register = _put_buffers(register, row_buffers, code.row_buffers, row_bytes)
        _put_buffers(register, entry_buffers, code.entry_buffers, entry_bytes)
    _begin_block(worker, job)
    return True


@jit
def _put_inputs(job: UpdateJob, registers: int) -> Words:
    """Writes the registers of scalars and of zero; returns the address of the next."""
    state = job.state
    register = registers + 8 * state.variable_count
    for k in range(state.scalar_count):
        store(register, k, job.scalars[k])
    register += 8 * state.scalar_count
    store(register, 0, job + 8 * UpdateJob.zero)
    return as_words(register + 8)


@jit
def _put_buffers(register: Words, first: int, count: int, size: int) -> Words:
    """Writes the registers of buffers side by side; returns the address of the next."""
    for k in range(count):
        register[k] = first + k * size
    return as_words(register + 8 * count)


@jit
def _begin_block(worker: Worker, job: UpdateJob) -> None:
    """Sets what is the same for all blocks."""
    block = worker.block
    state = job.state
    block.dim = state.dim
    block.shift = job.shift
    block.starts = job.starts
    block.summands = as_words(job.ungrouped)
    has_one_each = state.deduplicates != 0
    is_listed = state.is_sweep == 0
    locals_of = int64(0) if has_one_each and is_listed else worker.locals
    block.locals = locals_of
    block.marks = 0
    block.sums = job.sums
    block.variables = job.variables
    block.values = job.values
    block.results = job.results


@jit
def set_dim(worker: Worker, dim: int) -> None:
    """Sets the elements of a row."""
    worker.block.dim = dim


@jit
def close_worker(worker: Worker) -> None:
    """Gives the memory back."""
    if worker.memory != 0:
        c_free(worker.memory)


@jit
def _execute(
    worker: Worker, job: UpdateJob, code: Code, registers: Words, first: int, count: int
) -> None:
    """Executes instructions for rows of the variables from `first` on; entries are in the block."""
    state, block = job.state, worker.block
    size = state.dim * state.item_bytes
    for k in range(state.variable_count):
        registers[k] = job.variables[k] + first * size
    block.instructions = as_record(Instruction, state + 8 * code.offset)
    block.instruction_count = code.instruction_count
    block.registers = registers
    block.row_count = count
    call_at(state.kernel_of_blocks, block)


@jit
def execute_with(
    worker: Worker, job: UpdateJob, first: int, count: int, start: int, end: int
) -> None:
    """Executes the program for rows that have the entries [start, end)."""
    state, block = job.state, worker.block
    block.entries = as_words(job.entries + 8 * start)
    block.entry_count = end - start
    registers = worker.registers_with
    _execute(worker, job, state.with_entries, registers, first, count)


@jit
def execute_without(worker: Worker, job: UpdateJob, first: int, count: int) -> None:
    """Executes the program for rows side by side that have no entries."""
    registers = worker.registers_without
    _execute(worker, job, job.state.without, registers, first, count)


@jit
def _has_zero_slots(job: UpdateJob, first: int, count: int) -> bool:
    """Whether all slots of rows are zeros, of no sign."""
    state = job.state
    size = state.dim * state.item_bytes
    for k in range(1, state.variable_count):
        if not is_zero(job.variables[k] + first * size, count * size):
            return False
    return True


@jit
def _sweep_without(worker: Worker, job: UpdateJob, first: int, count: int) -> None:
    """Executes the program for a block without entries, unless it stays as it is.

    To skip single rows is slower than to go through all: each row that is left would cost a call of
    every instruction.
    """
    if job.skips == 0 or not _has_zero_slots(job, first, count):
        execute_without(worker, job, first, count)


@jit
def _sweep_blocks(worker: Worker, job: UpdateJob, begin: int, end: int) -> None:
    """Does the blocks [begin, end) of a sweep."""
    bits, shift = job.block_bits, job.shift
    entries, total = job.entries, job.entry_count
    stop, locals_of = first_at(entries, total, shift, begin << bits), worker.locals
    for index in range(begin, end):
        first, start = index << bits, stop
        count = min(int64(1) << bits, job.row_count - first)
        while stop < total and entries[stop] >> shift < first + count:
            locals_of[stop - start] = (entries[stop] >> shift) - first
            stop += 1
        if start < stop:
            execute_with(worker, job, first, count, start, stop)
        else:
            _sweep_without(worker, job, first, count)


@jit
def _ask_for(job: UpdateJob, index: int) -> None:
    """Asks for the rows of a block, which lie far from each other, if there is one."""
    state, bits = job.state, job.block_bits
    size = state.dim * state.item_bytes
    if job.row_count * size * state.variable_count <= _CACHED:
        return
    end = min((index + 1) << bits, job.distinct_count)
    for k in range(index << bits, end):
        offset = job.rows[k] * size
        for variable in range(state.variable_count):
            row = job.variables[variable] + offset
            for line in range(min((size + _LINE - 1) // _LINE, _LINES_AHEAD)):
                _claim(row + line * _LINE)


@jit
def _listed_blocks(worker: Worker, job: UpdateJob, begin: int, end: int) -> None:
    """Does the blocks [begin, end) of rows that have entries."""
    bits, starts = job.block_bits, job.starts
    locals_of, block = worker.locals, worker.block
    has_one_each = job.state.deduplicates != 0
    _ask_for(job, begin)
    for index in range(begin, end):
        first = index << bits
        _ask_for(job, index + 1)
        count = min(int64(1) << bits, job.distinct_count - first)
        start, stop = first, first + count
        if not has_one_each:
            start, stop = starts[first], starts[first + count]
            for row in range(count):
                for entry in range(starts[first + row], starts[first + row + 1]):
                    locals_of[entry - start] = row
        block.rows = as_words(job.rows + 8 * first)
        execute_with(worker, job, int64(0), count, start, stop)


@jit
def _marked_blocks(worker: Worker, job: UpdateJob, begin: int, end: int) -> None:
    """Does the blocks [begin, end) of all rows, of which those with marks change."""
    bits, block = job.block_bits, worker.block
    for index in range(begin, end):
        first = index << bits
        count = min(int64(1) << bits, job.row_count - first)
        block.marks = job.marks + MARK_BYTES * first
        block.first_row = first
        execute_with(worker, job, first, count, int64(0), count)


@jit
def do_tasks(worker: Worker, job: UpdateJob, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    is_sweep = job.state.is_sweep != 0
    step = job.task_blocks
    task = next_task(job, helps)
    while task >= 0:
        begin, end = task * step, min((task + 1) * step, job.block_count)
        if is_sweep:
            _sweep_blocks(worker, job, begin, end)
        elif job.marks != 0:
            _marked_blocks(worker, job, begin, end)
        else:
            _listed_blocks(worker, job, begin, end)
        task = next_task(job, helps)


@jit
def work(job: UpdateJob, helps: int) -> None:
    """What a thread does that helps; without memory, nothing."""
    worker = stack_record(Worker)
    if open_worker(worker, job):
        do_tasks(worker, job, helps)
    close_worker(worker)
