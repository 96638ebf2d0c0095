"""What the kernel of FusedEmbeddingUpdate knows of a node, and of a call."""

from __future__ import annotations

from fusion.ops.updates.cpu_kernels.layout import Block, ValueSource
from fusion.runtime.layout import Address, Flag, Int64, Layout, Words, record
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import UpdateAccess
from fusion.runtime.threads.layout import Job, Pool


class Code(Layout):
    """Instructions of a program for some blocks, and where they are in the state, in words."""

    offset: Int64
    instruction_count: Int64
    row_buffers: Int64
    entry_buffers: Int64
    scalar_buffers: Int64


class UpdateState(State):
    """The state of a node. Instructions follow, then offsets of values and flags of variables."""

    access: UpdateAccess = record(UpdateAccess)
    pool: Pool  # of threads, 0 for none
    kernel_of_blocks: Address  # `updates.cpu_kernels.blocks`
    item_bytes: Int64
    ids_dtype: Int64
    variable_count: Int64
    value_count: Int64
    scalar_count: Int64
    result_count: Int64
    dim: Int64
    is_sweep: Flag
    needs_rows: Flag  # whether ids < 0 are errors
    may_skip: Flag  # whether rows of zero slots may stay
    deduplicates: Flag  # whether values of repeated ids are summed first
    wraps_negative: Flag  # whether ids < 0 count from the end
    sparse_count: Int64  # of variables with the flag
    offsets: Int64  # where in the state the offsets of values are, in words
    sparse: Int64  # the flags of variables
    with_entries: Code = record(Code)  # of blocks with entries
    without: Code = record(Code)  # of blocks without


class UpdateJob(Job):
    """What the tasks of a call share."""

    state: UpdateState
    variables: Words  # of the first row of each, int64
    values: ValueSource  # of each
    scalars: Words  # of each, int64
    results: Words  # of each, int64
    zero: Int64  # 0, the sum of no entries
    ids: Address
    id_count: Int64
    row_count: Int64  # of the variables
    block_bits: Int64  # a block has 1 << block_bits rows
    block_count: Int64
    task_blocks: Int64  # blocks of a task
    entries: Words  # sorted, see `grouping`; where values are summed first one for each row
    entry_count: Int64
    shift: Int64
    ungrouped: Address  # where values are summed first: sorted, all of them
    rows: Words  # distinct rows, and where their entries start; where they are needed
    starts: Words
    marks: Address  # of all rows those that have ids, see `Block.marks`, or 0
    sums: Words  # of each value those of all rows, where there are marks
    distinct_count: Int64
    max_entries: Int64  # of a block
    skips: Flag  # whether rows of zero slots stay


class Worker(Layout):
    """What a thread works with."""

    memory: Address  # from malloc
    registers_with: Words  # of blocks with entries, int64
    registers_without: Words
    locals: Words  # of each entry its row among those of the block
    block: Block = record(Block)
