"""What takes the gradients of a concat's inputs out of its own, by sizes that are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.concat_gradient import is_shape_of, packed_shapes


@dataclass(frozen=True)
class InputGradient:
    """The gradient of one of a concat's inputs.

    Attributes:
        node: the Slice.
        whole: what it is taken out of.
        index: the input's.
    """

    node: str
    whole: Tensor
    index: int


def slices_of(view: GraphView, concat: str, axis: int) -> Iterator[InputGradient]:
    """Yields the Slices of gradients whose bounds a ConcatOffset of the inputs' shapes gives."""
    inputs = view.inputs(concat)[:-1]
    for node in _measured_by(view, concat, "ConcatOffset"):
        along, *shapes = view.inputs(node)
        if not _is(view, along, axis) or not _are_shapes(view, tuple(shapes), inputs):
            continue
        for use in view.uses(node):
            if view.op(use.node) != "Slice" or use.position != 1:
                continue
            whole, _, size = view.inputs(use.node)
            index = use.tensor.index
            if view.resolve(size) == view.resolve(shapes[index]):
                yield InputGradient(use.node, whole, index)


def splits_of(view: GraphView, concat: str, axis: int) -> Iterator[str]:
    """Yields the SplitVs of gradients into those of all inputs, whose sizes are measured."""
    inputs = view.inputs(concat)[:-1]
    for pack in _measured_by(view, concat, "Pack"):
        for row in (use.node for use in view.uses(pack) if view.op(use.node) == "Slice"):
            for sizes in (use.node for use in view.uses(row)):
                for use in view.uses(sizes):
                    if view.op(use.node) != "SplitV" or use.position != 1:
                        continue
                    shapes = packed_shapes(view, Tensor(sizes), axis)
                    along = view.inputs(use.node)[2]
                    if _is(view, along, axis) and _are_shapes(view, shapes, inputs):
                        yield use.node


def _measured_by(view: GraphView, concat: str, op: str) -> Iterator[str]:
    """Yields the nodes of an op that read the shape of a concat's first input that is measured."""
    found: dict[str, None] = {}
    for tensor in view.inputs(concat)[:-1]:
        for use in view.tensor_uses(tensor):
            if view.op(use.node) in ("Shape", "ShapeN"):
                shape = Tensor(use.node, use.position)
                for reader in view.tensor_uses(shape):
                    if view.op(reader.node) == op:
                        found[reader.node] = None
    yield from found


def _are_shapes(view: GraphView, shapes: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> bool:
    if len(shapes) != len(inputs):
        return False
    return all(is_shape_of(view, *pair) for pair in zip(shapes, inputs, strict=True))


def _is(view: GraphView, axis: Tensor, number: int) -> bool:
    """Whether an axis is a number; stock takes it modulo the rank."""
    source = view.resolve(axis)
    parts = view.inputs(source.node) if view.op(source.node) == "FloorMod" else (axis,)
    values = [view.constant(part) for part in parts]
    if any(value is None or value.size != 1 for value in values):
        return False
    first, *rank = (int(value.reshape(())) for value in values if value is not None)
    return (first % rank[0] if rank else first) == number
