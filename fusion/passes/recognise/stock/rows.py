"""Rows of a table that are the result as they are: a gather by dense ids, each of them a row.

That is what an Embedding layer is, and a gather written by hand. One op for many of them is better
where something puts their rows side by side; a gather alone is as good as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.analysis.symbolic_shapes import Vector
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.fused.fused_op import Whole
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock.gathers import lookup_of, match_gather

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


def match_rows(view: GraphView, gather: str) -> Rows | NoMatch:
    """Says what a gather of rows of a table looks up."""
    found = match_gather(view, gather, keeps_shape=False)
    if isinstance(found, NoMatch):
        return found
    ids = found.ids
    each = DenseIds(ids.values, ids.dtype, None, 0, is_each=True, wraps=ids.wraps)
    spec = lookup_of(view, found, gather, each, Tensor(gather))
    return Rows(stage=Stage.OUTPUT, nodes=(gather,), front=ids.nodes, spec=spec, shape=found.shape)
