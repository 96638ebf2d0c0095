"""Rows of requests without candidates, where the widest row of all says how wide a tensor is.

The original has no row of such a request. So it gets the row of a request with candidates: the
tensor is as wide as the original's, and what follows from its width is the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorflow.core.framework import function_pb2, types_pb2

from fusion.passes.analysis.rows.facts import Kind, Side
from fusion.passes.analysis.rows.walk import RowFacts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.requests.writer import Writer

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
_WIDE_AS_ROWS = frozenset(
    {"RaggedTensorToTensor", "SparseToDense", "DenseBincount", "ParseExample", "ParseExampleV2"}
)


def has_width_of_requests(
    view: GraphView, facts: RowFacts, functions: Iterable[function_pb2.FunctionDef]
) -> bool:
    """Whether a tensor of requests is as wide as the rows of all requests say.

    Args:
        view: the graph.
        facts: of its rows.
        functions: those that its loops and branches call, in which any such op will do.
    """
    if any(node.op in _WIDE_AS_ROWS for function in functions for node in function.node_def):
        return True
    return any(
        _has_open_width(facts, tensor)
        for tensor in facts.facts
        if view.op(tensor.node) in _WIDE_AS_ROWS
    )


def _has_open_width(facts: RowFacts, tensor: Tensor) -> bool:
    fact, shape = facts.facts[tensor], facts.shape(tensor)
    if fact.kind is not Kind.ROWS or fact.side is not Side.REQUEST:
        return False
    return shape is None or None in shape[1:]


def rows_with_candidates(write: Writer, counts: Tensor) -> Tensor:
    """Returns int64 [requests]: the own row of each request with candidates, else one of another.

    Args:
        write: the graph.
        counts: int64 [requests], the numbers of candidates.
    """
    scope, zero = "request/filled", write.constant(0, "int64")
    size = write.add(scope, "Size", (counts,), {"T": _INT64, "out_type": _INT64})
    numbers = write.add(scope, "Range", (zero, size, write.constant(1, "int64")), {"Tidx": _INT64})
    has_any = write.add(scope, "Greater", (counts, zero), {"T": _INT64})
    own = write.add(scope, "SelectV2", (has_any, numbers, zero), {"T": _INT64})
    types, attrs = {"T": _INT64, "Tidx": _INT32}, {"keep_dims": False}
    last = write.add(scope, "Max", (own, write.constant([0])), types, attrs)
    return write.add(scope, "SelectV2", (has_any, numbers, last), {"T": _INT64})
