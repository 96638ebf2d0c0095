"""Who has a variable's handle, and what they do with it."""

from __future__ import annotations

from fusion.passes.graph_view import GraphView
from fusion.passes.tensor import VALUE_READS, Tensor
from fusion.passes.variables import VARIABLE_OPS

_READERS = frozenset(
    {"ResourceGather", "VariableShape", "DisableCopyOnRead", "VarIsInitializedOp"} | VALUE_READS
)


def has_other_handles(view: GraphView, source: Tensor) -> bool:
    """Whether there may be another handle of a variable that has one from `source`.

    Arguments of a function are different variables, unless somebody gives it one handle twice:
    tf.function makes one argument of a variable, however often it is given or captured.
    """
    op = view.op(source.node)
    if op not in VARIABLE_OPS:
        return False
    own = shared_name(view, source.node)
    others = (name for name in view.named(op) if name != source.node)
    return any(shared_name(view, name) == own for name in others)


def writers(view: GraphView, source: Tensor) -> list[str]:
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


def shared_name(view: GraphView, name: str) -> str:
    """Returns the name by which the handles of one variable know it."""
    return view.text_attr(name, "shared_name") or name
