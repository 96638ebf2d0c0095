"""What keeps a graph that was to have stock ops only from being one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.report.fused_before import HAS_GRADIENT
from fusion.passes.report.report import FusionReport
from fusion.schema.names import OP_NAMES, ROW_UPDATE


def not_lowered(
    graph_def: graph_pb2.GraphDef, report: FusionReport, *, was_rewritten: bool = False
) -> str | None:
    """Returns which op of this package is still there, why, and what to do; None if there is none.

    Args:
        graph_def: the result of the pass with target "stock".
        report: that of the pass.
        was_rewritten: whether the pass is known to have fused the model that it was given.
    """
    reasons = {(c.function, c.anchor): c.reason for c in report.columns if not c.fused}
    left = [
        (node, reasons.get((function, node.name)))
        for function, nodes in _node_lists(graph_def)
        for node in nodes
        if node.op in OP_NAMES
    ]
    if not left:
        return None
    # One that is known not to fit says more than what is around it.
    node, reason = min(left, key=lambda pair: pair[1] is None)
    why = "" if reason is None else f": {reason}"
    advice = _advice(node.op, reason or "", was_rewritten)
    return f"{node.name} ({node.op}) cannot become stock ops{why}; {advice}"


def _advice(op: str, reason: str, was_rewritten: bool) -> str:
    if was_rewritten:
        return "rewrite the model that was fused instead"
    if op == ROW_UPDATE or op.endswith("Grad") or reason.startswith(HAS_GRADIENT):
        return "leave steps of training out of what is exported"
    return "build the model with do_fusion=None, or TensorFlow's own lookups, and export it again"


def _node_lists(
    graph_def: graph_pb2.GraphDef,
) -> Iterator[tuple[str, Iterable[node_def_pb2.NodeDef]]]:
    yield "", graph_def.node
    yield from ((f.signature.name, f.node_def) for f in graph_def.library.function)
