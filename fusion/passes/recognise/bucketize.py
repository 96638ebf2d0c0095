"""Ids that are the buckets of values, which an op can find itself."""

from __future__ import annotations

from typing import NamedTuple

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.spec import DenseIds


class Bucketize(NamedTuple):
    """A stock Bucketize: the bucket of a value is the number of boundaries that are <= it.

    Attributes:
        values: [B, L].
        dtype: their DataType: float, double, int32 or int64.
        boundaries: ascending, at least one.
    """

    values: Tensor
    dtype: int
    boundaries: tuple[float, ...]


def folded_bucketize(view: GraphView, ids: DenseIds) -> Bucketize | None:
    """Returns what makes the ids, if they are buckets that are all entries."""
    node = Value(view, ids.values).producer
    if ids.hashed is not None or node.op != "Bucketize" or node.controls:
        return None
    attr = node.attr("boundaries")
    boundaries = tuple(attr.list.f) if attr is not None else ()
    if ids.ignored is not None or not boundaries:
        return None
    return Bucketize(node.input(0).tensor, node.type_attr("T"), boundaries)
