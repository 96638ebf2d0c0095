"""Rows of a table that are the result as they are: a gather by dense ids, each of them a row.

That is what an Embedding layer is, and a gather written by hand. One op for many of them is better
where something puts their rows side by side; a gather alone is as good as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.analysis.symbolic_shapes import Vector
from fusion.passes.graph.values import Node
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock.gathers import lookup_of, match_gather
from fusion.schema.columns import Column

JOINS = frozenset({"AddN", "ConcatV2", "Pack"})
"""What puts tensors side by side, or adds them."""


@dataclass(frozen=True, kw_only=True)
class Shaped(Whole):
    """A lookup by dense ids, whose result may have any rank.

    Attributes:
        shape: the symbolic shape of its result; None if it is not known.
    """

    shape: Vector | None


@dataclass(frozen=True, kw_only=True)
class Rows(Shaped):
    """A gather that is all of a lookup: its shape is that of the ids, then D."""


def match_rows(gather: Node) -> Rows | NoMatch:
    """Says what a gather of rows of a table looks up."""
    gathered = match_gather(gather, keeps_shape=False)
    if isinstance(gathered, NoMatch):
        return gathered
    ids = gathered.ids
    each = DenseIds(ids.values.tensor, ids.dtype, None, 0, is_each=True, wraps=ids.wraps)
    column = Column(combiner="sum", fill_empty_row=True)
    spec = lookup_of(gathered, gather, each, gather.output(), column)
    nodes, shape = (gather.name,), gathered.shape
    return Rows(stage=Stage.OUTPUT, nodes=nodes, front=ids.nodes, spec=spec, shape=shape)
