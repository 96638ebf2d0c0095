"""What the interpreter of programs reads: instructions, and the block that they are executed for.

Operands are *registers*, numbers of addresses: of a variable's rows, of a scalar, or of a buffer
for the rows or the entries of a block. This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Flag, Int64, Layout, Words, record
from fusion.schema.update_program import BINARY, UNARY

#: Of what operands an operation of two is, and their numbers among its opcodes.
VECTORS, VECTOR_SCALAR, SCALAR_VECTOR = range(3)

#: Opcodes. An operation of two operands has one for each of the above.
BINARY_CODES = {name: 3 * index for index, name in enumerate(BINARY)}
UNARY_CODES = {name: 3 * len(BINARY) + index for index, name in enumerate(UNARY)}
_FIRST = 3 * len(BINARY) + len(UNARY)
(
    COPY,  # out = left
    FILL,  # out = left, a scalar
    SUM,  # rows out = sums of the entries left
    TAKE,  # entries out = the rows left
    TAKE_VARIABLE,  # entries out = rows of variable `left`, wherever these are
    GATHER,  # rows out = rows of variable `left`, wherever these are
    GATHER_VALUE,  # entries out = those of value `left`
    SUM_VALUE,  # entries out = sums of those of value `left`, see `Block.starts`
    SUM_BY_IDS,  # rows out = sums of those of value `left`, see `Block.ids`
    SCATTER_ADD,  # rows of variable `out`, wherever these are, += the entries left
    SCATTER_SUB,
    SCATTER_UPDATE,  # = instead
    RESULT,  # result `out` = the entries left
) = range(_FIRST, _FIRST + 13)
#: Of the operations of a program that are not elementwise.
OTHER_CODES = {
    "assign": COPY,
    "sum": SUM,
    "take": TAKE,
    "scatter_add": SCATTER_ADD,
    "scatter_sub": SCATTER_SUB,
    "scatter_update": SCATTER_UPDATE,
    "result": RESULT,
}

#: The size of a mark of `Block.marks`.
MARK_BYTES = 4

#: How many elements an elementwise instruction has.
OF_ROWS, OF_ENTRIES, OF_SCALAR = range(3)


class Instruction(Layout):
    """An instruction; operands are registers but where an opcode says otherwise."""

    opcode: Int64
    count: Int64  # `OF_ROWS`, `OF_ENTRIES` or `OF_SCALAR`
    out: Int64
    left: Int64
    right: Int64


#: Of what follows in `CodeWords`.
CODE_VERSION = 1


class CodeCounts(Layout):
    """How many instructions a block has, and how many buffers of each kind."""

    instructions: Int64
    rows: Int64
    entries: Int64
    scalars: Int64


class CodeWords(Layout):
    """The attr `code` of a node in words of 32 bits, little endian; instructions follow.

    They are those of blocks with entries, then those of blocks without. Registers are variables,
    scalars, zero, then the buffers of scalars, of rows and of entries. The first instruction that
    writes a buffer comes before all that read it; buffers are numbered in the order of these.
    """

    version: Int64  # `CODE_VERSION`
    is_sweep: Flag  # whether rows without entries change
    needs_rows: Flag  # whether each entry needs a row: else those of negative ids are left out
    may_skip: Flag  # whether rows of zero slots may stay, see `lowering`
    with_entries: CodeCounts = record(CodeCounts)
    without: CodeCounts = record(CodeCounts)


class Block(Layout):
    """Rows of the variables, with their entries."""

    instructions: Instruction  # [instruction_count]
    instruction_count: Int64
    registers: Words  # of each register its address, int64
    dim: Int64  # elements of a row
    row_count: Int64
    rows: Words  # the row of each, int64 [row_count]; read by `GATHER` alone
    entry_count: Int64
    entries: Words  # row << shift | index of the entry, ascending, int64 [entry_count]
    shift: Int64
    starts: Words  # of entry `index` the summands [starts[index], starts[index + 1]); 0 where
    # all are of this block, and say themselves which entry is theirs
    summands: Words  # of those, as entries are; both read by `SUM_VALUE` alone
    locals: Words  # of each entry its row among those of the block, int64 [entry_count]; 0 where
    # each row has one entry, in the order of rows
    marks: (
        Address  # of each row -1 if it has ids, else 0, int32 [row_count]; 0 where all have. Else
    )
    # the block is rows side by side, each with an entry; `rows` and `entries` are not there
    sums: Words  # of each value those of all rows, where there are marks
    first_row: Int64  # of the block, among those
    ids: Address  # of all entries; with their dtype, number, and what those < 0 are added to be
    # rows, unless they have none; read by `SUM_BY_IDS` alone
    ids_dtype: Int64
    id_count: Int64
    wraps: Int64
    variables: Words  # of the first row of each variable, int64
    values: ValueSource  # of each value
    results: Words  # of each result, int64


class ValueSource(Layout):
    """Where the entries of a value are."""

    first: Address  # the elements of entry 0
    step: Int64  # bytes from one entry to the next
