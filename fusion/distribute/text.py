"""Tables as plain text, and sizes that people can read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusion.printable import printable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NUMBER = re.compile(r"[\d,.]+( \w+)?")


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
