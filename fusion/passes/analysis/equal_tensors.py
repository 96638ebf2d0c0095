"""Tensors that are equal since equal nodes compute them of equal tensors.

TensorFlow makes one of equal nodes before a graph runs. A graph that is rewritten still has all of
them, such as a slice of a batch for each time that the program writes it.
"""

from __future__ import annotations

from collections.abc import Collection

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView

#: So many pairs of nodes are compared at most.
_MAX_PAIRS = 64
_MERGES = frozenset({"Merge", "RefMerge"})


def is_among(view: GraphView, tensor: Tensor, others: Collection[Tensor]) -> bool:
    """Whether a tensor is known to be equal to one of the others."""
    return tensor in others or any(are_equal(view, tensor, other) for other in others)


def are_equal(view: GraphView, one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are known to be equal, in shape, dtype and numbers."""
    stack, compared = [(one, other)], set[tuple[str, str]]()
    while stack:
        a, b = map(view.resolve, stack.pop())
        if a == b or (a.index == b.index and (a.node, b.node) in compared):
            continue
        if a.index != b.index or len(compared) == _MAX_PAIRS or not _do_same(view, a.node, b.node):
            return False
        compared.add((a.node, b.node))
        stack += zip(view.inputs(a.node), view.inputs(b.node), strict=True)
    return True


def _do_same(view: GraphView, one: str, other: str) -> bool:
    """Whether two nodes make the same of their inputs, whenever they run."""
    op = view.op(one)
    if op != view.op(other) or op in _MERGES or len(view.inputs(one)) != len(view.inputs(other)):
        return False
    if view.signatures.is_stateful(op) or view.controls(one) or view.controls(other):
        return False
    # What has no inputs is something else each time, but for constants.
    is_fixed = op == "Const" or bool(view.inputs(one))
    return is_fixed and _have_same_attrs(view, one, other)


def _have_same_attrs(view: GraphView, one: str, other: str) -> bool:
    a, b = (view.nodes[name].attr for name in (one, other))
    keys, others = ({key for key in attrs if not key.startswith("_")} for attrs in (a, b))
    return keys == others and all(a[key] == b[key] for key in keys)
