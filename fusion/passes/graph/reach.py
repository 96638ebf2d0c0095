"""What steps from some things lead to, in passes: commands ask networkx, see `networks`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def reached(starts: Iterable[_T], step: Callable[[_T], Iterable[_T]]) -> dict[_T, None]:
    """Returns the starts and all that steps from them lead to, depth first."""
    nodes: dict[_T, None] = {}
    stack = [*starts]
    while stack:
        one = stack.pop()
        if one not in nodes:
            nodes[one] = None
            stack.extend(step(one))
    return nodes
