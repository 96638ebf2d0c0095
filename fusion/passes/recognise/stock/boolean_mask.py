"""Tensors behind gathers of the entries that a condition keeps, as tf.boolean_mask makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusion.passes.analysis.symbolic_shapes import pass_flat
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView


@dataclass
class Levels:
    """A tensor behind gathers of the entries that a condition keeps, outermost first.

    `tensors[k]` is the tensor before the k outermost gathers; `conditions[k]` what the k-th keeps,
    with the nodes of that gather in `nodes[k]`. `aliases[k]` stand in front of `tensors[k]`.
    """

    tensors: list[Tensor] = field(default_factory=list)
    aliases: list[tuple[str, ...]] = field(default_factory=list)
    conditions: list[Tensor] = field(default_factory=list)
    nodes: list[tuple[str, ...]] = field(default_factory=list)


def peel(view: GraphView, tensor: Tensor) -> Levels:
    """Returns what a tensor of entries was before entries were dropped from it, step by step."""
    levels = Levels()
    while True:
        tensor, passed = pass_flat(view, tensor)
        levels.tensors.append(tensor)
        levels.aliases.append(passed)
        if not is_row_gather(view, tensor.node) or view.controls(tensor.node):
            return levels
        source, positions = view.inputs(tensor.node)[:2]
        match = match_where(view, positions)
        if match is None:
            return levels
        condition, nodes = match
        condition, passed = pass_flat(view, condition)
        levels.conditions.append(condition)
        levels.nodes.append((tensor.node, *nodes, *passed))
        tensor = source


def match_where(view: GraphView, positions: Tensor) -> tuple[Tensor, tuple[str, ...]] | None:
    """Explains positions as those where a condition [n] holds: it, and the nodes between."""
    flat = view.resolve(positions)
    if not _flattens(view, flat.node):
        return None
    inner = view.inputs(flat.node)[0]
    where = view.resolve(inner)
    if view.op(where.node) != "Where":
        return None
    nodes = (*view.aliases(positions), flat.node, *view.aliases(inner), where.node)
    return view.inputs(where.node)[0], nodes


def _flattens(view: GraphView, name: str) -> bool:
    """Whether the node turns an [n, 1] matrix into an [n] vector."""
    if view.op(name) == "Reshape":
        target = view.constant(view.inputs(name)[1])
        return target is not None and np.array_equal(target, [-1])
    if view.op(name) == "Squeeze":
        dims = view.attr(name, "squeeze_dims")
        return dims is not None and list(dims.list.i) in ([1], [-1])
    return False
