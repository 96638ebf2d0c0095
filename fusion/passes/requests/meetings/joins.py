"""Tensors side by side, or along a new axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.meetings.registry import factor_of, is_split, rule, side_of
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import Assembled, Part, Term


@rule("ConcatV2")
def _concat(graph: NewGraph, node: Node) -> Assembled | None:
    values = [graph.assembled(value.tensor) for value in node.inputs[:-1]]
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or not any(map(is_split, values)):
        return None
    axis = node.input(node.input_count - 1).item % len(sizes)
    parts, before = list[Part](), 0
    in_order = all(value is None or value.is_in_order for value in values)
    for value in values:
        if value is None or (len(value.parts) > 1 and value.axis != axis):
            return None
        own = value.parts
        if len(own) == 1:
            own = (replace(own[0], size=value.sizes[axis]),)
        parts += own if in_order else _placed(own, before)
        before += value.sizes[axis]
    return Assembled(sizes, axis, tuple(parts), factor_of(graph, node))


@rule("Pack")
def _packed(graph: NewGraph, node: Node) -> Assembled | None:
    """Of tensors that are there: a part for each run of those of one side."""
    values = [graph.assembled(value.tensor) for value in node.inputs]
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or not any(map(is_split, values)):
        return None
    axis = node.int_attr("axis") % len(sizes)
    runs: list[list[Term]] = []
    for value in values:
        if value is None or len(value.terms) != 1 or not value.is_whole:
            return None
        (term,) = value.terms
        if runs and runs[-1][0].of_request is term.of_request:
            runs[-1].append(term)
        else:
            runs.append([term])
    parts = []
    for run in runs:
        own, tensors = (*sizes[:axis], len(run), *sizes[axis + 1 :]), [term.tensor for term in run]
        new = _stacked(graph, node, tensors, axis, side_of(run[0]))
        parts.append(Part(len(run), (Term(new, run[0].of_request, own),)))
    return Assembled(sizes, axis, tuple(parts), factor_of(graph, node))


def _stacked(
    graph: NewGraph, node: Node, tensors: Sequence[Tensor], axis: int, side: str
) -> Tensor:
    """Writes tensors along a new axis.

    One alone without a Pack: TensorFlow's optimizer ties that to the op in front of it, and then
    fuses no bias into a product.
    """
    write, dtype, name = graph.writer, graph.dtype(node.output().tensor), f"{node.name}/{side}"
    if len(tensors) > 1:
        attrs = {"N": len(tensors), "axis": axis}
        return write.add(name, "Pack", tensors, {"T": dtype}, attrs)
    inputs, types = (*tensors, write.constant(axis)), {"T": dtype, "Tdim": types_pb2.DT_INT32}
    return write.add(name, "ExpandDims", inputs, types)


def _placed(parts: Sequence[Part], before: int) -> list[Part]:
    """Returns parts whose elements have places, behind others."""
    placed, start = [], before
    for part in parts:
        places = [before + k for k in part.places] or range(start, start + part.size)
        placed.append(replace(part, places=tuple(places)))
        start += part.size
    return placed
