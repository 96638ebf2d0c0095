"""Nodes that die with others: they read what goes away, and only for what goes away.

TensorFlow 1 groups the gradients of an op, so that each waits for the others: such an order among
nodes without effect keeps none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusion.passes.graph.tensor import ALIAS_OPS, RETURN
from fusion.passes.graph.view import GraphView

_SMALL = ALIAS_OPS | frozenset(
    {"Shape", "ShapeN", "Size", "Rank", "ConcatOffset", "Pack", "Slice", "StridedSlice"}
    | {
        "BroadcastGradientArgs",
        "Squeeze",
        "ExpandDims",
        "ConcatV2",
        "GatherV2",
        "Prod",
        "Cast",
        "ZerosLike",
        "Reshape",
    }
)
"""Gradients measure what they are gradients of by such ops."""


def dead_with(view: GraphView, gone: Iterable[str], *, unseen: bool = True) -> set[str]:
    """Returns the consumers of removed nodes that are dead once those are removed.

    Args:
        unseen: whether nodes that are not live stay, with all that they read.
    """
    gone = set(gone)
    dying: set[str] = set()
    stack = [use.node for name in gone for use in view.uses(name)]
    while stack:
        name = stack.pop()
        if name not in gone and name not in dying and _may_die(view, name):
            dying.add(name)
            stack += [use.node for use in view.uses(name)]
    dead = gone | dying
    stack = list(dying)
    while stack:
        name = stack.pop()
        if name in dying and _is_needed(view, name, dead, unseen):
            dying.remove(name)
            dead.remove(name)
            stack += [tensor.node for tensor in view.inputs(name)]
    return dying


def _may_die(view: GraphView, name: str) -> bool:
    if view.op(name) not in _SMALL:
        return False
    if view.controls(name) or (view.control_uses(name) and view.has_effect(name)):
        return False
    return name not in view.preserved and name not in view.awaited


def _is_needed(view: GraphView, name: str, dead: set[str], unseen: bool) -> bool:
    uses = view.uses(name)
    users = [*(use.node for use in uses), *view.control_uses(name)]
    if not users:
        return unseen or view.is_live(name)
    if RETURN in users or any(use.position < 0 for use in uses):
        return True
    return any(user not in dead and (unseen or view.is_live(user)) for user in users)
