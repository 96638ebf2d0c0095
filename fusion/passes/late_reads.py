"""Whether a variable may be read later than a graph reads it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.variables import VARIABLE_OPS

_READERS = frozenset(
    {"ReadVariableOp", "ResourceGather", "VariableShape", "DisableCopyOnRead", "VarIsInitializedOp"}
)


def may_read_later(view: GraphView, read: str, results: Collection[Tensor]) -> bool:
    """Whether a read gives the same value as late as the first of the `results` is computed.

    That is so if whatever may change the variable waits for one of them, or for the read: what does
    can wait for a later one as well.

    Args:
        read: a ReadVariableOp.
        results: what is computed of it.
    """
    (handle,) = view.inputs(read)
    source = view.origin(handle)
    if _has_other_handles(view, source):
        return False
    after = {read, *(tensor.node for tensor in results)}

    def waits(writer: str) -> bool:
        """Whether a node waits for a result by data, or for its node or the read by control."""
        seen, queue = {writer}, deque([writer])
        while queue:
            node = queue.popleft()
            given, controls = view.inputs(node), view.controls(node)
            if any(tensor in results for tensor in given) or not after.isdisjoint(controls):
                return True
            for before in (*(tensor.node for tensor in given), *controls):
                if before not in seen:
                    seen.add(before)
                    queue.append(before)
        return False

    return all(map(waits, _writers(view, source)))


def _has_other_handles(view: GraphView, source: Tensor) -> bool:
    """Whether there may be another handle of a variable that has one from `source`."""
    op = view.op(source.node)
    if op not in VARIABLE_OPS:
        return False
    own = _shared_name(view, source.node)
    others = (name for name in view.named(op) if name != source.node)
    return any(_shared_name(view, name) == own for name in others)


def _shared_name(view: GraphView, name: str) -> str:
    """Returns the name by which the handles of one variable know it."""
    shared = view.attr(name, "shared_name")
    return shared.s.decode() if shared is not None and shared.s else name


def _writers(view: GraphView, source: Tensor) -> list[str]:
    """Returns the nodes that are given the handle from `source` and may change the variable."""
    found: list[str] = []
    stack = [source.node]
    while stack:
        # Of all outputs: those of a switch are the same variable.
        for use in view.uses(stack.pop()):
            if use.position < 0:
                continue
            if view.origin(Tensor(use.node)) == source:
                stack.append(use.node)
            elif view.op(use.node) not in _READERS:
                found.append(use.node)
    return found
