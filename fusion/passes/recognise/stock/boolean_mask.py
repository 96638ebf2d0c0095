"""Tensors behind gathers of the entries that a condition keeps, as tf.boolean_mask makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.analysis.symbolic_shapes import pass_flat
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.values import Node, Value


@dataclass
class Levels:
    """A tensor behind gathers of the entries that a condition keeps, outermost first.

    `tensors[k]` is the tensor before the k outermost gathers; `conditions[k]` what the k-th keeps,
    with the nodes of that gather in `nodes[k]`. `aliases[k]` stand in front of `tensors[k]`.
    """

    tensors: list[Value] = field(default_factory=list)
    aliases: list[tuple[str, ...]] = field(default_factory=list)
    conditions: list[Value] = field(default_factory=list)
    nodes: list[tuple[str, ...]] = field(default_factory=list)


def peel(value: Value) -> Levels:
    """Returns what a tensor of entries was before entries were dropped from it, step by step."""
    levels = Levels()
    while True:
        value, passed = pass_flat(value)
        levels.tensors.append(value)
        levels.aliases.append(passed)
        gather = value.producer
        if not is_row_gather(gather) or gather.controls:
            return levels
        value, positions = gather.inputs[:2]
        match = match_where(positions)
        if match is None:
            return levels
        condition, nodes = match
        condition, passed = pass_flat(condition)
        levels.conditions.append(condition)
        levels.nodes.append((gather.name, *nodes, *passed))


def match_where(positions: Value) -> tuple[Value, tuple[str, ...]] | None:
    """Explains positions as those where a condition [n] holds: it, and the nodes between."""
    flat = positions.producer
    if not _flattens(flat):
        return None
    inner = flat.input(0)
    where = inner.producer
    return (where.input(0), (*positions.path, *inner.path)) if where.op == "Where" else None


def _flattens(node: Node) -> bool:
    """Whether the node turns an [n, 1] matrix into an [n] vector."""
    if node.op == "Reshape":
        return bool(node.input(1).elements == [-1])
    if node.op == "Squeeze":
        dims = node.attr("squeeze_dims")
        return dims is not None and list(dims.list.i) in ([1], [-1])
    return False
