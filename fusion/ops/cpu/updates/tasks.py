"""The tasks of a call: blocks of rows, in which a program is executed, and how threads share them.

In a sweep a block is rows side by side, with entries or without; else it is rows that have entries,
wherever they are.
"""

from __future__ import annotations

from fusion.cpu_ops.updates.grouping import first_at
from fusion.cpu_ops.updates.layout import MARK_BYTES, Block
from fusion.cpu_ops.updates.zeros import is_zero
from fusion.cpu_ops.vectors import tile_ops
from fusion.ops.cpu.updates.layout import Code, UpdateJob, UpdateState, Worker
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import (
    c_free,
    c_malloc,
    call_at,
    load,
    stack_words,
    store,
)
from fusion.runtime.threads.jobs import next_task

_LINE = 64

#: Lines of a row that are asked for before they are needed.
_LINES_AHEAD = 4

#: Bytes of variables that are in the processor's cache anyway.
_CACHED = 1 << 18

_claim = tile_ops("float32", 1, 1).claim


@jit
def _buffer_bytes(elements: int, item: int) -> int:
    """The size of a buffer: whole lines, and one more, lest all begin alike."""
    return (elements * item + _LINE - 1) // _LINE * _LINE + _LINE


@jit
def _register_count(state: int, code: int) -> int:
    return (
        load(state, UpdateState.variable_count)
        + load(state, UpdateState.scalar_count)
        + 1
        + load(code, Code.scalar_buffers)
        + load(code, Code.row_buffers)
        + load(code, Code.entry_buffers)
    )


@jit
def code_with(state: int) -> int:
    """The address of the `Code` of blocks with entries."""
    return state + 8 * UpdateState.with_entries


@jit
def code_without(state: int) -> int:
    """The address of the `Code` of blocks without."""
    return state + 8 * UpdateState.without


@jit
def open_worker(worker: int, job: int) -> bool:
    """Begins with the memory that blocks need; whether there is it."""
    state = load(job, UpdateJob.state)
    dim, item = load(state, UpdateState.dim), load(state, UpdateState.item_bytes)
    row_bytes = _buffer_bytes(dim << load(job, UpdateJob.block_bits), item)
    entry_bytes = _buffer_bytes(dim * load(job, UpdateJob.most_entries), item)
    first, second = code_with(state), code_without(state)
    rows = max(load(first, Code.row_buffers), load(second, Code.row_buffers))
    scalars = max(load(first, Code.scalar_buffers), load(second, Code.scalar_buffers))
    words = _register_count(state, first) + _register_count(state, second)
    words += scalars + load(job, UpdateJob.most_entries)
    entries = load(first, Code.entry_buffers)
    size = rows * row_bytes + entries * entry_bytes + _LINE + 8 * words
    store(worker, Worker.memory, c_malloc(size))
    if load(worker, Worker.memory) == 0:
        return False
    row_buffers = (load(worker, Worker.memory) + _LINE - 1) // _LINE * _LINE
    entry_buffers = row_buffers + rows * row_bytes
    store(worker, Worker.registers_with, entry_buffers + entries * entry_bytes)
    end = load(worker, Worker.registers_with) + 8 * _register_count(state, first)
    store(worker, Worker.registers_without, end)
    scalar_buffers = end + 8 * _register_count(state, second)
    store(worker, Worker.locals, scalar_buffers + 8 * scalars)
    for which in range(2):
        code = second if which else first
        field = Worker.registers_without if which else Worker.registers_with
        register = _put_inputs(job, load(worker, field))
        count = load(code, Code.scalar_buffers)
        register = _put_buffers(register, scalar_buffers, count, int64(8))
        register = _put_buffers(register, row_buffers, load(code, Code.row_buffers), row_bytes)
        _put_buffers(register, entry_buffers, load(code, Code.entry_buffers), entry_bytes)
    _begin_block(worker, job)
    return True


@jit
def _put_inputs(job: int, registers: int) -> int:
    """Writes the registers of scalars and of zero; returns the address of the next."""
    state = load(job, UpdateJob.state)
    register = registers + 8 * load(state, UpdateState.variable_count)
    for k in range(load(state, UpdateState.scalar_count)):
        store(register, k, load(load(job, UpdateJob.scalars), k))
    register += 8 * load(state, UpdateState.scalar_count)
    store(register, 0, job + 8 * UpdateJob.zero)
    return register + 8


@jit
def _put_buffers(register: int, first: int, count: int, size: int) -> int:
    """Writes the registers of buffers side by side; returns the address of the next."""
    for k in range(count):
        store(register, k, first + k * size)
    return register + 8 * count


@jit
def _begin_block(worker: int, job: int) -> None:
    """Sets what is the same for all blocks."""
    block = worker + 8 * Worker.block
    state = load(job, UpdateJob.state)
    store(block, Block.dim, load(state, UpdateState.dim))
    store(block, Block.shift, load(job, UpdateJob.shift))
    store(block, Block.starts, load(job, UpdateJob.starts))
    store(block, Block.summands, load(job, UpdateJob.ungrouped))
    has_one_each = load(state, UpdateState.deduplicates) != 0
    is_listed = load(state, UpdateState.is_sweep) == 0
    locals_of = int64(0) if has_one_each and is_listed else load(worker, Worker.locals)
    store(block, Block.locals, locals_of)
    store(block, Block.marks, 0)
    store(block, Block.sums, load(job, UpdateJob.sums))
    store(block, Block.variables, load(job, UpdateJob.variables))
    store(block, Block.values, load(job, UpdateJob.values))
    store(block, Block.results, load(job, UpdateJob.results))


@jit
def set_dim(worker: int, dim: int) -> None:
    """Sets the elements of a row."""
    store(worker, Worker.block + Block.dim, dim)


@jit
def close_worker(worker: int) -> None:
    """Gives the memory back."""
    if load(worker, Worker.memory) != 0:
        c_free(load(worker, Worker.memory))


@jit
def _execute(worker: int, job: int, code: int, registers: int, first: int, count: int) -> None:
    """Executes instructions for rows of the variables from `first` on; entries are in the block."""
    state, block = load(job, UpdateJob.state), worker + 8 * Worker.block
    size = load(state, UpdateState.dim) * load(state, UpdateState.item_bytes)
    for k in range(load(state, UpdateState.variable_count)):
        store(registers, k, load(load(job, UpdateJob.variables), k) + first * size)
    store(block, Block.instructions, state + 8 * load(code, Code.offset))
    store(block, Block.instruction_count, load(code, Code.instruction_count))
    store(block, Block.registers, registers)
    store(block, Block.row_count, count)
    call_at(load(state, UpdateState.kernel_of_blocks), block)


@jit
def execute_with(worker: int, job: int, first: int, count: int, start: int, end: int) -> None:
    """Executes the program for rows that have the entries [start, end)."""
    state, block = load(job, UpdateJob.state), worker + 8 * Worker.block
    store(block, Block.entries, load(job, UpdateJob.entries) + 8 * start)
    store(block, Block.entry_count, end - start)
    registers = load(worker, Worker.registers_with)
    _execute(worker, job, code_with(state), registers, first, count)


@jit
def execute_without(worker: int, job: int, first: int, count: int) -> None:
    """Executes the program for rows side by side that have no entries."""
    registers = load(worker, Worker.registers_without)
    _execute(worker, job, code_without(load(job, UpdateJob.state)), registers, first, count)


@jit
def _has_zero_slots(job: int, first: int, count: int) -> bool:
    """Whether all slots of rows are zeros, of no sign."""
    state = load(job, UpdateJob.state)
    size = load(state, UpdateState.dim) * load(state, UpdateState.item_bytes)
    for k in range(1, load(state, UpdateState.variable_count)):
        if not is_zero(load(load(job, UpdateJob.variables), k) + first * size, count * size):
            return False
    return True


@jit
def _sweep_without(worker: int, job: int, first: int, count: int) -> None:
    """Executes the program for a block without entries, unless it stays as it is.

    To skip single rows is slower than to go through all: each row that is left would cost a call of
    every instruction.
    """
    if load(job, UpdateJob.skips) == 0 or not _has_zero_slots(job, first, count):
        execute_without(worker, job, first, count)


@jit
def _sweep_blocks(worker: int, job: int, begin: int, end: int) -> None:
    """Does the blocks [begin, end) of a sweep."""
    bits, shift = load(job, UpdateJob.block_bits), load(job, UpdateJob.shift)
    entries, total = load(job, UpdateJob.entries), load(job, UpdateJob.entry_count)
    stop, locals_of = first_at(entries, total, shift, begin << bits), load(worker, Worker.locals)
    for index in range(begin, end):
        first, start = index << bits, stop
        count = min(int64(1) << bits, load(job, UpdateJob.row_count) - first)
        while stop < total and load(entries, stop) >> shift < first + count:
            store(locals_of, stop - start, (load(entries, stop) >> shift) - first)
            stop += 1
        if start < stop:
            execute_with(worker, job, first, count, start, stop)
        else:
            _sweep_without(worker, job, first, count)


@jit
def _ask_for(job: int, index: int) -> None:
    """Asks for the rows of a block, which lie far from each other, if there is one."""
    state, bits = load(job, UpdateJob.state), load(job, UpdateJob.block_bits)
    size = load(state, UpdateState.dim) * load(state, UpdateState.item_bytes)
    if load(job, UpdateJob.row_count) * size * load(state, UpdateState.variable_count) <= _CACHED:
        return
    end = min((index + 1) << bits, load(job, UpdateJob.distinct_count))
    for k in range(index << bits, end):
        offset = load(load(job, UpdateJob.rows), k) * size
        for variable in range(load(state, UpdateState.variable_count)):
            row = load(load(job, UpdateJob.variables), variable) + offset
            for line in range(min((size + _LINE - 1) // _LINE, _LINES_AHEAD)):
                _claim(row + line * _LINE)


@jit
def _listed_blocks(worker: int, job: int, begin: int, end: int) -> None:
    """Does the blocks [begin, end) of rows that have entries."""
    bits, starts = load(job, UpdateJob.block_bits), load(job, UpdateJob.starts)
    locals_of, block = load(worker, Worker.locals), worker + 8 * Worker.block
    has_one_each = load(load(job, UpdateJob.state), UpdateState.deduplicates) != 0
    _ask_for(job, begin)
    for index in range(begin, end):
        first = index << bits
        _ask_for(job, index + 1)
        count = min(int64(1) << bits, load(job, UpdateJob.distinct_count) - first)
        start, stop = first, first + count
        if not has_one_each:
            start, stop = load(starts, first), load(starts, first + count)
            for row in range(count):
                for entry in range(load(starts, first + row), load(starts, first + row + 1)):
                    store(locals_of, entry - start, row)
        store(block, Block.rows, load(job, UpdateJob.rows) + 8 * first)
        execute_with(worker, job, int64(0), count, start, stop)


@jit
def _marked_blocks(worker: int, job: int, begin: int, end: int) -> None:
    """Does the blocks [begin, end) of all rows, of which those with marks change."""
    bits, block = load(job, UpdateJob.block_bits), worker + 8 * Worker.block
    for index in range(begin, end):
        first = index << bits
        count = min(int64(1) << bits, load(job, UpdateJob.row_count) - first)
        store(block, Block.marks, load(job, UpdateJob.marks) + MARK_BYTES * first)
        store(block, Block.first_row, first)
        execute_with(worker, job, first, count, int64(0), count)


@jit
def do_tasks(worker: int, job: int, helps: int) -> None:
    """Does tasks until all have been begun; `helps` as in `next_task`."""
    is_sweep = load(load(job, UpdateJob.state), UpdateState.is_sweep) != 0
    step = load(job, UpdateJob.task_blocks)
    task = next_task(job, helps)
    while task >= 0:
        begin, end = task * step, min((task + 1) * step, load(job, UpdateJob.block_count))
        if is_sweep:
            _sweep_blocks(worker, job, begin, end)
        elif load(job, UpdateJob.marks) != 0:
            _marked_blocks(worker, job, begin, end)
        else:
            _listed_blocks(worker, job, begin, end)
        task = next_task(job, helps)


@jit
def work(job: int, helps: int) -> None:
    """What a thread does that helps; without memory, nothing."""
    worker = stack_words(Worker.SIZE)
    if open_worker(worker, job):
        do_tasks(worker, job, helps)
    close_worker(worker)
