"""Names and messages from models as text that is safe to show, counts, sizes and tables.

A model may be untrusted, and protocol buffers hold any text: escape sequences that a terminal
obeys, line ends that begin a line of their own, marks that turn the direction of writing around,
characters that XML has no place for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NUMBER = re.compile(r"[\d,.]+( \w+)?")


def printable(text: object) -> str:
    r"""Returns one line: what `str` makes of a thing, with all that is not printed escaped.

    That is what `str.isprintable` says: control and format characters, line ends, surrogates. They
    come out as in Python's own literals, e.g. "\x1b" or "\u202e".
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )


def printable_lines(text: object) -> str:
    """Returns text in several lines, each as `printable` makes it."""
    return "\n".join(map(printable, str(text).split("\n")))


def counted(count: int, noun: str) -> str:
    """Returns a number and what there are so many of: "1 signature", "2 signatures"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def snake_case(op_name: str) -> str:
    """Returns the name of an op in snake case, as TensorFlow's own generator makes it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_name).lower()


def size(count: float) -> str:
    """So many bytes, in the unit in which it is below 1,024."""
    unit = 0
    while count >= 1023.95 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.{1 if unit else 0}f} {_UNITS[unit]}"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells, two spaces apart; columns of numbers or sizes are aligned by their end."""
    cells = [[printable(cell) for cell in row] for row in [headings, *rows]]
    columns = []
    for heading, *column in zip(*cells, strict=True):
        width = max(map(len, [heading, *column]))
        right = all(map(_NUMBER.fullmatch, column))
        columns.append([f"{cell:{'>' if right else '<'}{width}}" for cell in [heading, *column]])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
