"""Whether instructions may be executed: the attr `code` of a node may be any bytes.

Instructions that pass read and write what is there, whatever they compute: registers and buffers
that the call has, of the elements that the operation goes through, and written before they are
read; variables, values and results by indices that the node has.
"""

from __future__ import annotations

import numpy as np

from fusion.ops.updates.cpu_kernels.layout import (
    CODE_VERSION,
    COPY,
    FILL,
    GATHER,
    GATHER_VALUE,
    OF_ENTRIES,
    OF_ROWS,
    OF_SCALAR,
    RESULT,
    SCALAR_VECTOR,
    SCATTER_ADD,
    SUM,
    SUM_VALUE,
    TAKE,
    TAKE_VARIABLE,
    UNARY_CODES,
    VECTOR_SCALAR,
    CodeCounts,
    CodeWords,
    Instruction,
)
from fusion.runtime.layout import Flag, Int64, Layout, Words, fields
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse

_WORD_BYTES = 4
_FIRST_UNARY = min(UNARY_CODES.values())
#: Opcodes of an operation of two operands.
_SHAPES = SCALAR_VECTOR + 1


class CodeCheck(Layout):
    """What instructions are checked against, and how far that is."""

    code: CodeWords
    variable_count: Int64
    value_count: Int64
    scalar_count: Int64
    result_count: Int64
    deduplicates: Flag

    is_sweep: Flag
    needs_rows: Flag
    has_entries: Flag  # whether these are instructions for blocks with entries
    first_buffers: Words = fields(3)  # the register of the first buffer of each kind
    buffer_counts: Words = fields(3)  # how many buffers of each kind there are
    written_counts: Words = fields(3)  # how many have been written
    results: Int64  # how many have been written


@jit
def word_of(code: int, index: int) -> int:
    """A word of the attr."""
    return int64(load_as(code, index, np.int32))


@jit
def check_code(creation: Creation, check: CodeCheck, size: int) -> int:
    """Refuses a node whose attr `code` may not be executed; the words of its instructions.

    Args:
      check: a `CodeCheck` with what comes from the node's attrs.
      size: the bytes of the attr.
    """
    code = check.code
    if size % _WORD_BYTES != 0 or size < _WORD_BYTES * CodeWords.SIZE:
        refuse(creation, INVALID_ARGUMENT, "code has %lld bytes, which are no instructions", size)
        return int64(0)
    version = word_of(code, int64(CodeWords.version))
    if version != CODE_VERSION:
        text = "code has version %lld, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, version, int64(CODE_VERSION))
        return int64(0)
    words = size // _WORD_BYTES - CodeWords.SIZE
    first = _count_of(code, int64(CodeWords.with_entries))
    second = _count_of(code, int64(CodeWords.without))
    if first < 0 or second < 0 or Instruction.SIZE * (first + second) != words:
        text = "code has %lld words of instructions, but says %lld and %lld instructions"
        refuse(creation, INVALID_ARGUMENT, text, words, first, second)
        return int64(0)
    _check_flags(creation, check, second)
    check.results = 0
    _check_block(creation, check, int64(CodeWords.with_entries), int64(0), first)
    results = check.results
    if results != check.result_count:
        text, count = "code has %lld results, not %lld", check.result_count
        refuse(creation, INVALID_ARGUMENT, text, results, count)
    _check_block(creation, check, int64(CodeWords.without), first, second)
    return words


@jit
def _count_of(code: int, counts: int) -> int:
    return word_of(code, counts + CodeCounts.instructions)


@jit
def _check_flags(creation: int, check: CodeCheck, without: int) -> None:
    code = check.code
    is_sweep = word_of(code, int64(CodeWords.is_sweep))
    for field in (CodeWords.is_sweep, CodeWords.needs_rows, CodeWords.may_skip):
        flag = word_of(code, int64(field))
        # What is done to rows without entries is said of a sweep alone.
        if flag < 0 or flag > 1 or (field == CodeWords.may_skip and flag > is_sweep):
            text = "code[%lld] must not be %lld"
            refuse(creation, INVALID_ARGUMENT, text, int64(field), flag)
    if without > 0 and is_sweep == 0:
        text = "code has %lld instructions for rows without entries, which do not change"
        refuse(creation, INVALID_ARGUMENT, text, without)
    check.is_sweep = is_sweep
    check.needs_rows = word_of(code, int64(CodeWords.needs_rows))


@jit
def _check_block(creation: Creation, check: CodeCheck, counts: int, first: int, count: int) -> None:
    """Checks the instructions from number `first` on."""
    if creation.has_failed != 0:
        return
    code, inputs = check.code, check.variable_count
    inputs += check.scalar_count + 1
    check.has_entries = int64(counts == CodeWords.with_entries)
    for kind, field in (
        (OF_SCALAR, CodeCounts.scalars),
        (OF_ROWS, CodeCounts.rows),
        (OF_ENTRIES, CodeCounts.entries),
    ):
        buffers = word_of(code, counts + field)
        check.first_buffers[kind] = inputs
        check.buffer_counts[kind] = buffers
        check.written_counts[kind] = 0
        inputs += buffers
    for index in range(first, first + count):
        if not _is_right(check, int64(CodeWords.SIZE + Instruction.SIZE * index)):
            refuse(creation, INVALID_ARGUMENT, "code: instruction %lld is not valid", index)
            return
    for kind in range(3):
        buffers = check.buffer_counts[kind]
        if buffers != check.written_counts[kind]:
            text = "code says that there are %lld buffers, but %lld are written"
            written = check.written_counts[kind]
            refuse(creation, INVALID_ARGUMENT, text, buffers, written)


# --- instructions -------------------------------------------------------------------------------


@jit
def _is_right(check: CodeCheck, at: int) -> bool:
    """Whether the instruction at a word may be executed behind those before."""
    code = check.code
    opcode, count = word_of(code, at + Instruction.opcode), word_of(code, at + Instruction.count)
    out, left = word_of(code, at + Instruction.out), word_of(code, at + Instruction.left)
    right = word_of(code, at + Instruction.right)
    if opcode < 0 or opcode > RESULT:
        return False
    if opcode <= FILL:
        return _is_elementwise(check, opcode, count, out, left, right)
    if check.has_entries == 0:
        return False
    if opcode == SUM:
        return _reads(check, left, OF_ENTRIES) and _writes(check, out, OF_ROWS)
    if opcode == TAKE:
        return _reads(check, left, OF_ROWS) and _writes(check, out, OF_ENTRIES)
    if opcode <= SUM_VALUE:
        return _is_load(check, opcode, out, left)
    return opcode >= SCATTER_ADD and _is_change(check, opcode, out, left)


@jit
def _is_elementwise(
    check: CodeCheck, opcode: int, count: int, out: int, left: int, right: int
) -> bool:
    """Whether all operands have the elements of the result, but for scalars."""
    if count < 0 or count > OF_SCALAR:
        return False
    left_kind = right_kind = count
    if opcode < _FIRST_UNARY:
        shape = opcode % _SHAPES
        left_kind = OF_SCALAR if shape == SCALAR_VECTOR else count
        right_kind = OF_SCALAR if shape == VECTOR_SCALAR else count
    elif opcode == FILL:
        left_kind = right_kind = OF_SCALAR
    if opcode >= COPY and count != OF_ROWS:
        return False
    is_read = _reads(check, left, left_kind) and _reads(check, right, right_kind)
    return is_read and _writes(check, out, count)


@jit
def _is_load(check: CodeCheck, opcode: int, out: int, left: int) -> bool:
    """Whether there is what is loaded, where rows and entries are listed for that."""
    if opcode in (TAKE_VARIABLE, GATHER):
        # In a sweep rows are where they are.
        is_there = 0 <= left < check.variable_count
        kind = OF_ROWS if opcode == GATHER else OF_ENTRIES
        return is_there and check.is_sweep == 0 and _writes(check, out, kind)
    wanted = SUM_VALUE if check.deduplicates != 0 else GATHER_VALUE
    is_there = 0 <= left < check.value_count
    return opcode == wanted and is_there and _writes(check, out, OF_ENTRIES)


@jit
def _is_change(check: CodeCheck, opcode: int, out: int, left: int) -> bool:
    """Whether there is what is scattered to, or the result, which is the next."""
    if check.needs_rows == 0:
        return False
    if opcode == RESULT:
        if out != check.results or check.deduplicates != 0:
            return False
        check.results = out + 1
    elif out < 0 or out >= check.variable_count:
        return False
    return _reads(check, left, OF_ENTRIES)


@jit
def _reads(check: CodeCheck, register: int, kind: int) -> bool:
    """Whether a register is there, has elements of a kind, and has been written."""
    buffer = register - check.first_buffers[kind]
    if 0 <= buffer < check.written_counts[kind]:
        return True
    variables = check.variable_count
    if kind == OF_ROWS:
        return check.is_sweep != 0 and 0 <= register < variables
    # The last of the scalars is zero.
    is_scalar = variables <= register <= variables + check.scalar_count
    return kind == OF_SCALAR and is_scalar


@jit
def _writes(check: CodeCheck, register: int, kind: int) -> bool:
    """Whether a register is there and may be written, which is noted."""
    if kind == OF_ROWS and 0 <= register < check.variable_count:
        return check.is_sweep != 0
    buffer = register - check.first_buffers[kind]
    written = check.written_counts[kind]
    if buffer == written < check.buffer_counts[kind]:
        check.written_counts[kind] = written + 1
        return True
    return 0 <= buffer < written
