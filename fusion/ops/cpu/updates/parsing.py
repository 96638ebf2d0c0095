"""A program from text to lines and values, in native code; see `fusion.schema.update_program`.

The text may be anything. Names and operations are of ASCII.
"""

from __future__ import annotations

from fusion.cpu_ops.updates.layout import (
    BINARY_CODES,
    COPY,
    OF_ENTRIES,
    OF_ROWS,
    OF_SCALAR,
    RESULT,
    SCATTER_ADD,
    SCATTER_SUB,
    SCATTER_UPDATE,
    SUM,
    TAKE,
    UNARY_CODES,
)
from fusion.ops.cpu.updates.program import (
    INVALID_ARGUMENT,
    NAMED,
    NONE,
    NUMBER,
    VARIABLE,
    Line,
    Lowering,
    Program,
    Value,
)
from fusion.ops.cpu.updates.records import is_write, line_of, lookup, new_value, value_of
from fusion.ops.cpu.updates.scanning import (
    COMMA,
    SEMICOLON,
    SPACE,
    find,
    leaf,
    split_line,
    stripped,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcmp, load, store
from fusion.runtime.native.text import (
    append_literal,
    append_number,
    append_quoted,
    append_text,
    byte,
    literal,
)

_CODES = {
    **BINARY_CODES,
    **UNARY_CODES,
    "assign": COPY,
    "sum": SUM,
    "take": TAKE,
    "scatter_add": SCATTER_ADD,
    "scatter_sub": SCATTER_SUB,
    "scatter_update": SCATTER_UPDATE,
    "result": RESULT,
}
_NAMES_BY_CODE = {code: name for name, code in _CODES.items()}
#: The names of the operations with the opcodes 0, 1..., each with a space behind; most have none.
_NAMES = "".join(f"{_NAMES_BY_CODE.get(code, '')} " for code in range(RESULT + 1))
_FIRST_UNARY = min(UNARY_CODES.values())

#: How many variables, values and scalars there are, in the order of kinds.
_COUNTS = Lowering.variable_count

#: In the place of a kind: there is no value; the line is refused.
_NOTHING, _REFUSED = -1, -2


@jit
def parse(program: int) -> bool:
    """Reads a program and says what it does; False with a message if it is none."""
    lowering = load(program, Program.lowering)
    at = load(lowering, Lowering.text)
    end = at + load(lowering, Lowering.text_bytes)
    results, is_sweep, needs_rows = 0, False, False
    for index in range(load(program, Program.line_count)):
        stop, line = find(at, end, SEMICOLON), line_of(program, index)
        if not _parse_line(program, line, at, stop):
            return False
        at, opcode = stop + 1, load(line, Line.opcode)
        results += int64(opcode == RESULT)
        is_sweep |= opcode == COPY
        needs_rows |= opcode == TAKE or opcode >= SCATTER_ADD
    store(lowering, Lowering.is_sweep, int64(is_sweep))
    store(lowering, Lowering.needs_rows, int64(needs_rows))
    return _check_indices(program, lowering) and _check_results(program, lowering, results)


# --- lines ------------------------------------------------------------------------------------


@jit
def _parse_line(program: int, line: int, start: int, stop: int) -> bool:
    start, stop = stripped(start, stop)
    store(line, Line.text, start)
    store(line, Line.text_bytes, stop - start)
    op, opened = split_line(start, stop)
    if opened == 0:
        _refuse(program, line, literal("it is not name=op(args)"), 0, 0, literal(""))
        return False
    count = _parse_arguments(program, line, opened + 1, stop - 1)
    if count == NONE:
        return False
    opcode, size = _opcode(op, opened - op), opened - op
    store(line, Line.opcode, opcode)
    if opcode == NONE:
        _refuse(program, line, literal("there is no operation '"), op, size, literal("'"))
        return False
    kind = (
        _elementwise_kind(program, line, op, size, count)
        if opcode < COPY
        else _other_kind(program, line, op, size, count)
    )
    return kind != _REFUSED and _name(program, line, op, size, kind)


@jit
def _parse_arguments(program: int, line: int, at: int, end: int) -> int:
    """Reads what is between brackets, the first two as operands; the number of all, or `NONE`."""
    for field in range(Line.out, Line.right + 1):
        store(line, field, 0)
    count = 0
    while at <= end:
        comma = find(at, end, COMMA)
        start, stop = stripped(at, comma)
        value = _argument(program, line, start, stop - start)
        if value == 0:
            message = _refuse(program, line, literal(""), 0, 0, literal(""))
            append_quoted(message, start, stop - start)
            append_literal(message, literal(" has no value"))
            return NONE
        if count < 2:
            store(line, Line.left + count, value)
        count += 1
        at = comma + 1
    return count


@jit
def _argument(program: int, line: int, start: int, size: int) -> int:
    """The value that an argument means, 0 if there is none."""
    origin, index = leaf(start, size)
    value = lookup(program, origin, index, start, size)
    if value == 0:
        if origin == NAMED:
            return value
        value = new_value(program, origin, index, start, size, origin)
        store(value, Value.line, line)
        if origin == NUMBER:
            index += load(load(program, Program.lowering), Lowering.variable_count)
        store(value, Value.register, index)
    store(value, Value.read_count, load(value, Value.read_count) + 1)
    return value


@jit
def _name(program: int, line: int, op: int, op_size: int, kind: int) -> bool:
    """Gives the value of a line its name."""
    start = load(line, Line.text)
    size = max(op - 1 - start, 0)
    if (size > 0) != (kind != _NOTHING):
        what = literal(" gives no value") if kind == _NOTHING else literal(" gives a value")
        _refuse(program, line, literal(""), op, op_size, what)
        return False
    if size == 0:
        return True
    origin, index = leaf(start, size)
    if origin != NAMED or lookup(program, origin, index, start, size) != 0:
        _refuse(program, line, literal(""), start, size, literal(" has a value already"))
        return False
    value = new_value(program, NAMED, 0, start, size, kind)
    store(value, Value.line, line)
    store(line, Line.out, value)
    return True


# --- values and operations --------------------------------------------------------------------


@jit
def _opcode(start: int, size: int) -> int:
    """The opcode of an operation by its name, `NONE` if there is none."""
    names = literal(_NAMES)
    for opcode in range(RESULT + 1):
        length = 0
        while byte(names + length) != SPACE:
            length += 1
        if length == size and c_memcmp(names, start, size) == 0:
            return opcode
        names += length + 1
    return NONE


@jit
def _elementwise_kind(program: int, line: int, op: int, size: int, count: int) -> int:
    """The kind of what an elementwise operation gives."""
    is_binary = load(line, Line.opcode) < _FIRST_UNARY
    if count != 1 + int64(is_binary):
        message = _refuse(program, line, literal(""), op, size, literal(" has not "))
        append_number(message, count)
        append_literal(message, literal(" operands"))
        return _REFUSED
    left = load(load(line, Line.left), Value.kind)
    right = load(load(line, Line.right), Value.kind) if is_binary else left
    kind = right if left == OF_SCALAR else left
    is_mixed = left != right and left != OF_SCALAR and right != OF_SCALAR
    if kind != OF_SCALAR and not is_mixed:
        return kind
    message = _refuse(program, line, literal(""), op, size, literal(" of "))
    append_literal(message, _kind_name(left))
    if is_binary:
        append_literal(message, literal(" and "))
        append_literal(message, _kind_name(right))
    return _REFUSED


@jit
def _other_kind(program: int, line: int, op: int, size: int, count: int) -> int:
    """The kind of what another operation gives, or `_NOTHING`; of a write the target is noted."""
    opcode, operand = load(line, Line.opcode), load(line, Line.left)
    writes = is_write(opcode)
    wanted = OF_ENTRIES if opcode == SUM or opcode >= SCATTER_ADD else OF_ROWS
    is_right = count == 1 + int64(writes)
    if writes and is_right:
        is_right = load(operand, Value.origin) == VARIABLE
        store(operand, Value.read_count, load(operand, Value.read_count) - 1)
        store(line, Line.target, operand)
        operand = load(line, Line.right)
        store(line, Line.left, operand)
        store(line, Line.right, 0)
    if not is_right or load(operand, Value.kind) != wanted:
        takes = literal(" takes v, ") if writes else literal(" takes ")
        append_literal(_refuse(program, line, literal(""), op, size, takes), _kind_name(wanted))
        return _REFUSED
    if opcode == SUM:
        return OF_ROWS
    return OF_ENTRIES if opcode == TAKE else _NOTHING


@jit
def _kind_name(kind: int) -> int:
    if kind == OF_ROWS:
        return literal("rows")
    return literal("entries") if kind == OF_ENTRIES else literal("scalar")


# --- what a program is given --------------------------------------------------------------------


@jit
def _check_indices(program: int, lowering: int) -> bool:
    """Whether there is all that lines refer to by an index; the first that is not is reported."""
    for number in range(load(program, Program.value_count)):
        value = value_of(program, number)
        origin = load(value, Value.origin)
        has_index = origin <= NUMBER
        if has_index and load(value, Value.index) >= load(lowering, _COUNTS + origin):
            text, size = load(value, Value.text), load(value, Value.text_bytes)
            line = load(value, Value.line)
            _refuse(program, line, literal("there is no "), text, size, literal(""))
            return False
    return True


@jit
def _check_results(program: int, lowering: int, count: int) -> bool:
    """Whether a program has as many results as there are outputs for them."""
    if count == load(lowering, Lowering.result_count):
        return True
    store(lowering, Lowering.code, INVALID_ARGUMENT)
    message = load(program, Program.message)
    append_literal(message, literal("program has "))
    append_number(message, count)
    append_literal(message, literal(" results, not "))
    append_number(message, load(lowering, Lowering.result_count))
    return False


@jit
def _refuse(program: int, line: int, before: int, text: int, size: int, after: int) -> int:
    """Reports a line, with a text of it between literals; returns the message, for more."""
    store(load(program, Program.lowering), Lowering.code, INVALID_ARGUMENT)
    message = load(program, Program.message)
    append_literal(message, literal("program: "))
    append_quoted(message, load(line, Line.text), load(line, Line.text_bytes))
    append_literal(message, literal(": "))
    append_literal(message, before)
    append_text(message, text, size)
    append_literal(message, after)
    return message
