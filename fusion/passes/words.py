"""What a recogniser explained, in words for people."""

from __future__ import annotations

import re
from functools import singledispatch

from fusion.passes.match import Match
from fusion.passes.recognise_ids import Fill, IdSource, Prune
from fusion.passes.recognise_output import Mask, Tail
from fusion.passes.recognise_reduction import Reduction
from fusion.passes.recognise_table import Table


def describe(part: Match) -> str:
    """Returns what the part does, and the first of its nodes."""
    place = next(iter((*part.nodes, *part.front)), "")
    return f"{_words(part)} ({place})" if place else _words(part)


@singledispatch
def _words(part: Match) -> str:
    """A part that has no words of its own is told by its class's name."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(part).__name__).lower()


@_words.register
def _(part: Reduction) -> str:
    return f"{part.combiner} of the rows of each bag"


@_words.register
def _(part: Fill) -> str:
    return f"empty bags get the id {part.default}"


@_words.register
def _(part: Prune) -> str:
    return "ids below 0 are dropped"


@_words.register
def _(part: IdSource) -> str:
    return f"the ids are {part.values}" + (", flattened to a matrix" if part.flattened else "")


@_words.register
def _(part: Table) -> str:
    return "the rows are those of one table"


@_words.register
def _(part: Mask) -> str:
    return "empty bags become zeros" if part.present else "empty bags keep what they got"


@_words.register
def _(part: Tail) -> str:
    return f"the result is {part.output}"
