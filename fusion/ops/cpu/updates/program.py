"""A program of FusedEmbeddingUpdate in the memory of native code, from text to instructions.

`parsing` makes lines and values of a text, `steps` makes steps of lines, and `instructions` makes
of these what the interpreter executes. This module needs no Numba.
"""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import OF_ENTRIES, OF_ROWS, OF_SCALAR, Instruction
from fusion.ops.cpu.updates.layout import Code
from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, fields

#: Codes of `Lowering.code`, as of TensorFlow's statuses.
OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED = 0, 3, 8

#: No message is longer.
MESSAGE_BYTES = 2048

#: A line that loads an operand and computes a value in blocks with entries, and computes that in
#: blocks without, has 10 bytes at least, and one that loads two has 13.
_WORDS_PER_BYTE = 2

#: In the place of an index.
NONE = -1


class Lowering(Layout):
    """What the lowering of a program is given, and below what comes of it."""

    text: Address
    text_bytes: Int64
    variable_count: Int64  # in the order of kinds
    value_count: Int64
    scalar_count: Int64
    result_count: Int64
    sums_values: Flag  # whether an entry is the sum of those of its row
    first_word: Int64  # where the instructions will be in a state, in words, for `Code.offset`
    words: Address  # out: of the instructions, see `most_words`
    word_capacity: Int64
    message: Address  # out: what is wrong, a C string; "" for nothing
    message_bytes: Int64  # of its memory, see `MESSAGE_BYTES`

    code: Int64  # of the error; the fields below are set only if it is `OK`
    word_count: Int64
    is_sweep: Flag  # whether rows without entries change
    needs_rows: Flag  # whether each entry needs a row: else those of negative ids are left out
    may_skip: Flag  # see `steps.may_skip`
    with_entries: Fields = fields(Code.SIZE)  # `Code` of blocks with entries
    without: Fields = fields(Code.SIZE)  # of blocks without


def most_words(text_bytes: int) -> int:
    """How many words at most the instructions of a program of so many bytes have."""
    return _WORDS_PER_BYTE * (text_bytes + Instruction.SIZE)


class Program(Layout):
    """A program that is lowered, in memory of its own."""

    lowering: Address  # `Lowering`
    message: Address  # `Message`
    lines: Address  # `Line` [line_count]
    line_count: Int64
    values: Address  # `Value` [value_count], zero first
    value_count: Int64
    steps: Address  # `Step` [step_count]
    step_count: Int64
    result_count: Int64
    next_free: Address  # of each buffer the one that is free after it, by -its register
    free_buffers: Fields = fields(3)  # of each kind the register of the first that is free, or 0
    buffer_counts: Fields = fields(3)  # how many there are


#: Where a value is from. By an index: a variable, the entries of a value, a scalar; the numbers are
#: those of their kinds.
VARIABLE, ENTRY, NUMBER = OF_ROWS, OF_ENTRIES, OF_SCALAR
#: Others: the result of a line, by its name; what a step loads of one by an index; zero, the sum of
#: no entries.
NAMED, LOADED, ZERO = range(OF_SCALAR + 1, OF_SCALAR + 4)


class Value(Layout):
    """A value of a program; of those of a variable, of which a write makes another, all are one."""

    origin: Int64  # one of the above
    line: Address  # the first `Line` that has it
    index: Int64  # of a variable, of entries or of a scalar
    text: Address  # its name, or of what it is loaded
    text_bytes: Int64
    kind: Int64  # `OF_ROWS`, `OF_ENTRIES` or `OF_SCALAR`
    read_count: Int64  # how often lines have it as an operand
    loaded: Address  # the `Value` that it is in while it stays the same, or 0
    is_zero: Flag  # whether it is a sum of no entries
    is_used: Flag
    step: Int64  # that computes it, or `NONE`
    home: Int64  # the variable in whose rows it is computed, or `NONE`
    last_use: Int64  # the last step that reads it
    register: Int64  # see `instructions`


class Line(Layout):
    """A line of a program. Values are the addresses of each `Value`, 0 for none."""

    text: Address
    text_bytes: Int64
    opcode: Int64  # of two vectors where there are several; `COPY` for an assign
    out: Address  # the value that it has
    target: Address  # the variable that it writes
    left: Address  # operands
    right: Address


class Step(Layout):
    """An operation with its operands, values as in a `Line`."""

    opcode: Int64
    out: Address
    target: Int64  # the index of what it loads or writes, or `NONE`
    left: Address
    right: Address
    is_kept: Flag
