"""The text of a program: bytes, lines and names, in native code. It may be anything."""

from __future__ import annotations

from fusion.ops.cpu.updates.program import ENTRY, NAMED, NUMBER, VARIABLE
from fusion.runtime.native.jit import jit
from fusion.runtime.native.text import byte, count_bytes

OPEN, CLOSE, COMMA, SEMICOLON, EQUALS, SPACE, _UNDERSCORE = map(ord, "(),;= _")
_FIRST_SPACE, _LAST_SPACE = map(ord, "\t\r")
_DIGIT_0, _DIGIT_9, _UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z = map(ord, "09AZaz")
_S, _V, _X = map(ord, "svx")

#: An index that is too large for a word is taken for this one, which no list has.
_MOST = 2**63 - 1


@jit
def find(at: int, end: int, value: int) -> int:
    """The address of the first byte of a value, or the end."""
    while at < end and byte(at) != value:
        at += 1
    return at


@jit
def stripped(start: int, stop: int) -> tuple[int, int]:
    """Where a text without the spaces around it begins and ends."""
    while start < stop and _is_space(byte(start)):
        start += 1
    while start < stop and _is_space(byte(stop - 1)):
        stop -= 1
    return start, stop


@jit
def _is_space(value: int) -> bool:
    return value == SPACE or _FIRST_SPACE <= value <= _LAST_SPACE


@jit
def _is_digit(value: int) -> bool:
    return _DIGIT_0 <= value <= _DIGIT_9


@jit
def _is_word(start: int, stop: int) -> bool:
    """Whether a text is of letters, digits and underscores, and not empty."""
    for at in range(start, stop):
        value = byte(at)
        is_letter = _LOWER_A <= value <= _LOWER_Z or _UPPER_A <= value <= _UPPER_Z
        if not is_letter and not _is_digit(value) and value != _UNDERSCORE:
            return False
    return start < stop


@jit
def split_line(start: int, stop: int) -> tuple[int, int]:
    """Where the operation of a line begins, and its bracket; 0 and 0 if it is not name=op(args)."""
    none = 0, 0
    opened = find(start, stop, OPEN)
    if opened == stop or byte(stop - 1) != CLOSE:
        return none
    if find(opened + 1, stop, OPEN) != stop or find(start, stop, CLOSE) != stop - 1:
        return none
    op, equals = start, find(start, opened, EQUALS)
    if equals != opened:
        op = equals + 1
        if not _is_word(start, equals) or _is_digit(byte(start)):
            return none
    if not _is_word(op, opened):
        return none
    return op, opened


@jit
def leaf(start: int, size: int) -> tuple[int, int]:
    """The origin and the index that a name stands for; `NAMED` and 0 if it has no index."""
    origin, index = _origin(byte(start)) if size > 1 else NAMED, 0
    for at in range(start + 1, start + size):
        digit = byte(at) - _DIGIT_0
        if digit < 0 or digit > 9:
            origin = NAMED
        index = 10 * index + digit if index <= (_MOST - 9) // 10 else _MOST
    return origin, index if origin != NAMED else 0


@jit
def _origin(letter: int) -> int:
    if letter == _V:
        return VARIABLE
    if letter == _X:
        return ENTRY
    return NUMBER if letter == _S else NAMED


@jit
def count_lines(start: int, end: int) -> int:
    """The number of lines of a text."""
    return 1 + count_bytes(start, end, SEMICOLON)


@jit
def count_arguments(start: int, end: int) -> int:
    """The number of arguments of all lines of a text, at most."""
    return count_lines(start, end) + count_bytes(start, end, COMMA)
