"""What a recogniser explained, in words for people."""

from __future__ import annotations

import re
from functools import singledispatch

from fusion.passes.recognise.match import Match, Whole
from fusion.passes.recognise.stock.entries import Entries, Fill
from fusion.passes.recognise.stock.id_source import IdSource
from fusion.passes.recognise.stock.max_norm import Clip
from fusion.passes.recognise.stock.output import Mask, Tail
from fusion.passes.recognise.stock.prune import Prune
from fusion.passes.recognise.stock.reduction import Reduction
from fusion.passes.recognise.stock.table import Table


def describe(part: Match) -> str:
    """Returns what the part does, and the first of its nodes."""
    node = next(iter((*part.nodes, *part.front)), "")
    return f"{_description(part)} ({node})" if node else _description(part)


@singledispatch
def _description(part: Match) -> str:
    """A part without a description of its own is named by its class."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(part).__name__).lower()


@_description.register
def _(part: Whole) -> str:
    return f"all of the lookup, which has the combiner {part.spec.combiner}"


@_description.register
def _(part: Reduction) -> str:
    weighted = "" if part.weights is None else ", each times its weight"
    return f"{part.combiner} of the rows of each bag{weighted}"


@_description.register
def _(part: Table) -> str:
    count = len(part.shards)
    shards = "one table" if count == 1 else f"a table in {count} shards by {part.strategy}"
    return f"the rows are those of {shards}"


@_description.register
def _(part: Clip) -> str:
    return f"rows with a norm above {part.limit:g} are scaled down to it"


@_description.register
def _(part: Entries) -> str:
    return f"the bag of each entry is its row in {part.rows_in}"


@_description.register
def _(part: Fill) -> str:
    weight = "" if part.default_weight == 1 else f" and the weight {part.default_weight:g}"
    return f"empty bags get the id {part.default}{weight}"


@_description.register
def _(part: Prune) -> str:
    dropped = ["ids below 0"] if part.by_id else []
    dropped += ["ids whose weight is not above 0"] if part.by_weight else []
    return f"{' and '.join(dropped)} are dropped" if dropped else "all ids are kept"


@_description.register
def _(part: IdSource) -> str:
    dense, (count, default) = part.dense, part.buckets
    words = f"the ids are {part.entries.ids}"
    if dense is not None:
        ignored = "" if dense.ignored is None else f" without {dense.ignored}"
        what = "elements" if dense.hashed is None else "hashes of the elements"
        words = f"the ids are the {what} of the dense {dense.values}{ignored}"
        words += "" if dense.hashed is None else f" where {dense.hashed.mask}"
    if part.row_splits is not None:
        words += f" of a RaggedTensor with the row splits {part.row_splits.tensor}"
    words += ", flattened to a matrix" if part.flattened else ""
    return f"{words}; those outside [0, {count}) become {default}" if count else words


@_description.register
def _(part: Mask) -> str:
    return "empty bags become zeros" if part.present else "empty bags keep the row of their id"


@_description.register
def _(part: Tail) -> str:
    return f"the result is {part.output}"
