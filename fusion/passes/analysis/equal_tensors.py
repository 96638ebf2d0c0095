"""Tensors that are equal since equal nodes compute them of equal tensors.

TensorFlow makes one of equal nodes before a graph runs. A graph that is rewritten still has all of
them, such as a slice of a batch for each time that the program writes it.
"""

from __future__ import annotations

from collections.abc import Collection

from fusion.passes.graph.values import Node, Value

#: So many pairs of nodes are compared at most.
_MAX_PAIRS = 64
_MERGES = frozenset({"Merge", "RefMerge"})


def is_among(value: Value, others: Collection[Value]) -> bool:
    """Whether a tensor is known to be equal to one of the others."""
    return value in others or any(are_equal(value, other) for other in others)


def are_equal(one: Value, other: Value) -> bool:
    """Whether two tensors are known to be equal, in shape, dtype and numbers."""
    stack, compared = [(one, other)], set[tuple[Node, Node]]()
    while stack:
        a, b = (value.resolved for value in stack.pop())
        pair = a.producer, b.producer
        if a == b or (a.index == b.index and pair in compared):
            continue
        if a.index != b.index or len(compared) == _MAX_PAIRS or not _do_same(*pair):
            return False
        compared.add(pair)
        stack += zip(pair[0].inputs, pair[1].inputs, strict=True)
    return True


def _do_same(one: Node, other: Node) -> bool:
    """Whether two nodes make the same of their inputs, whenever they run."""
    op, count = one.op, one.input_count
    if op != other.op or op in _MERGES or count != other.input_count:
        return False
    if one.view.signatures.is_stateful(op) or one.controls or other.controls:
        return False
    # What has no inputs is something else each time, but for constants.
    return (op == "Const" or count > 0) and _have_same_attrs(one, other)


def _have_same_attrs(one: Node, other: Node) -> bool:
    a, b = (node.view.nodes[node.name].attr for node in (one, other))
    keys, others = ({key for key in attrs if not key.startswith("_")} for attrs in (a, b))
    return keys == others and all(a[key] == b[key] for key in keys)
