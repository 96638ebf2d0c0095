"""Tensors of a graph, their uses and static shapes, and the ops that only hand tensors on."""

from __future__ import annotations

from typing import NamedTuple

from tensorflow.core.framework import tensor_shape_pb2

from fusion.schema.names import READ_TABLES

Shape = tuple[int | None, ...]

#: Ops that hand on their input.
ALIAS_OPS = frozenset({"Identity", "Snapshot"})

#: Ops that bring their first input into a v1 loop or branch, each with a frame of its own.
BRANCH_OPS = frozenset({"Enter", "RefEnter", "Switch", "RefSwitch"})

#: What hands a value of a v1 loop on to the next iteration: the only circles that do not wait.
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})

#: What reads variables, each as an output: stock's of one, and ours, which copies nothing.
VALUE_READS = frozenset({"ReadVariableOp", READ_TABLES})

ARG_OP = "_Arg"
"""Op name of the nodes that stand for a function's arguments in a view."""

RETURN = "^return"
"""Stands for the function itself among the control users of a node that it waits for."""


class Tensor(NamedTuple):
    """Output `index` of node `node`."""

    node: str
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not needed here

    def __str__(self) -> str:
        return f"{self.node}:{self.index}" if self.index else self.node


class Use(NamedTuple):
    """Input `position` of `node` reads `tensor`; position -1 is a function's return value."""

    node: str
    position: int
    tensor: Tensor


def dims(shape: tensor_shape_pb2.TensorShapeProto) -> Shape:
    """Returns the sizes of a shape of known rank, None for unknown ones."""
    return tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)
