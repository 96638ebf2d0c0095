"""The parts of a call, and how many ops each has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: The parts of a call, in their order.
PARTS = PARSING, IDS, LOOKUPS, DENSE = "parsing", "ids", "lookups", "dense"


@dataclass(frozen=True)
class CallPart:
    """A part of what signatures run.

    Attributes:
        name: "parsing" (of Examples), "ids" (what lookups read but for tables), "lookups" (with
            reads of tables) or "dense" (the rest).
        ops_before, ops_after: how many ops it has before and after the rewrite; constants, inputs
            and calls do not count.
    """

    name: str
    ops_before: int
    ops_after: int

    def to_dict(self) -> dict[str, Any]:
        """Returns strings and numbers, ready for JSON."""
        return {**self.__dict__}


def merged(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Adds up parts of the same name."""
    sums = dict[str, CallPart]()
    for one in parts:
        to = sums.get(one.name, CallPart(one.name, 0, 0))
        before, after = to.ops_before + one.ops_before, to.ops_after + one.ops_after
        sums[one.name] = CallPart(one.name, before, after)
    return tuple(sums.values())


def call_lines(parts: Sequence[CallPart]) -> Iterator[str]:
    """Yields how many ops the parts of a call have and will have, if it is not dense alone."""
    ops = [
        f"{part.name} {part.ops_before}"
        + (f" -> {part.ops_after}" if part.ops_after != part.ops_before else "")
        for part in parts
        if part.ops_before or part.ops_after
    ]
    if any(part.ops_before for part in parts if part.name != DENSE):
        yield f"ops of a call: {', '.join(ops)}"
