"""The rows of what branches and loops return: their bodies are followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from fusion.passes.analysis.rows.counts import Count, Elements
from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, Side, joined
from fusion.passes.graph.tensor import Shape

BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})

#: A loop is gone through until nothing new is found: a side is added to a tensor at most twice.
_MOST_ROUNDS = 64
#: What bodies are given and return. Parts of sparse tensors have names of one graph.
_FOLLOWED = frozenset({Kind.CONSTANT, Kind.ROWS, Kind.SIZES, Kind.SUMMARY, Kind.LIST, Kind.MIXED})


@dataclass(frozen=True)
class Known:
    """What is known of a tensor that a body is given or returns.

    Attributes:
        fact: of its rows.
        shapes: as the graph is, and for each number of rows that is tried.
        values: likewise, of one that is the same whenever the body runs.
    """

    fact: Fact
    shapes: tuple[Shape | None, ...]
    values: tuple[npt.NDArray[Any] | None, ...]


Follow = Callable[[str, Sequence[Known]], Sequence[Known]]
"""(function, its arguments) -> its results."""


def of_branches(
    op: str, test: Fact, names: Sequence[str], arguments: Sequence[Known], follow: Follow
) -> list[Known]:
    """Returns what is known of the results of an If or a Case.

    Args:
        op: it.
        test: the fact of what it decides by.
        names: the functions of its branches.
        arguments: of all of them.
        follow: finds what is known of a function's results.
    """
    if not is_fixed(test):
        raise Mixes(f"{op} decides by {test.kind.value}")
    given = [*map(_followed, arguments)]
    results = [follow(name, given) for name in names]
    found = [*results[0]]
    for other in results[1:]:
        found = [_of_either(op, a, b) for a, b in zip(found, other, strict=True)]
    return _of_one_side([_followed(one) for one in found], arguments)


def of_loop(
    op: str,
    names: tuple[str, str],
    arguments: Sequence[Known],
    kept: Sequence[bool],
    follow: Follow,
) -> list[Known]:
    """Returns what is known of the results of a While.

    Args:
        op: it.
        names: the functions of its condition and of its body.
        arguments: of both.
        kept: of each argument, whether the body returns it as it is.
        follow: finds what is known of a function's results.
    """
    found = [
        _followed(one if is_kept else replace(one, values=(None,) * len(one.values)))
        for one, is_kept in zip(arguments, kept, strict=True)
    ]
    for _ in range(_MOST_ROUNDS):
        results = follow(names[1], found)
        both = zip(found, results, kept, strict=True)
        merged = [a if is_kept else _of_either(op, a, _followed(b)) for a, b, is_kept in both]
        if merged == found:
            break
        found = merged
    else:
        raise Mixes(f"{op} finds other rows each time")
    (test,) = follow(names[0], found)
    if test.fact.kind is Kind.MIXED:
        raise Mixes(f"{op} goes on by rows: {test.fact.reason}")
    if not is_fixed(test.fact):
        raise Mixes(f"{op} goes on by {test.fact.kind.value}")
    return _of_one_side(found, arguments)


def is_fixed(fact: Fact) -> bool:
    """Whether a value is the same for any rows."""
    if fact.kind is Kind.SIZES and fact.elements is not None:
        return not {Count.ROWS, Count.OTHER} & {*fact.elements}
    return fact.kind is Kind.CONSTANT


def _followed(known: Known) -> Known:
    """Returns what a body is given, or returns; nothing of parts of sparse tensors."""
    if known.fact.kind in _FOLLOWED:
        return known
    return _mixed(known, f"a branch or a loop has {known.fact.kind.value}")


def _mixed(known: Known, reason: str) -> Known:
    return replace(known, fact=Fact(Kind.MIXED, known.fact.side, reason=reason))


def _of_either(op: str, a: Known, b: Known) -> Known:
    """Returns what is known of a tensor that is one of two."""
    shapes = tuple(map(_common, a.shapes, b.shapes))
    result = Known(a.fact, shapes, (None,) * len(a.values))
    if Kind.MIXED in (a.fact.kind, b.fact.kind):
        return replace(result, fact=a.fact if a.fact.kind is Kind.MIXED else b.fact)
    if a.fact.is_empty_list or b.fact.is_empty_list:
        return replace(result, fact=b.fact if a.fact.is_empty_list else a.fact)
    elements = _either(a.fact.elements, b.fact.elements)
    shape = _common(a.fact.shape, b.fact.shape) or ()
    one, other = (
        replace(fact, side=Side.NEITHER, elements=elements, shape=shape)
        for fact in (a.fact, b.fact)
    )
    if one != other:
        return _mixed(result, f"{op} has {a.fact.kind.value} or {b.fact.kind.value}")
    return replace(result, fact=replace(one, side=a.fact.side | b.fact.side))


def _either(a: Elements, b: Elements) -> Elements:
    if a == b or a is None or b is None or len(a) != len(b):
        return a if a == b else None
    of_rows = {Count.ROWS, Count.OTHER}
    return tuple(
        x if x == y else Count.OTHER if x in of_rows or y in of_rows else Count.FIXED
        for x, y in zip(a, b, strict=True)
    )


def _common(a: Shape | None, b: Shape | None) -> Shape | None:
    """Returns the sizes that two shapes have in common."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _of_one_side(results: Sequence[Known], arguments: Sequence[Known]) -> list[Known]:
    """Returns results of one side, that of all that is computed: the node is written once."""
    of_rows = (Kind.ROWS, Kind.LIST, Kind.SUMMARY)
    side = joined(one.fact for one in (*results, *arguments) if one.fact.kind in of_rows)
    return [
        replace(one, fact=replace(one.fact, side=side)) if one.fact.kind in of_rows else one
        for one in results
    ]
