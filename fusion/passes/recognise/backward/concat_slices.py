"""What takes the gradients of a concat's inputs out of its own, by sizes that are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.backward.concat_gradient import MEASURES, are_shapes_of, packed_shapes


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


def slices_of(concat: Node, axis: int) -> Iterator[InputGradient]:
    """Yields the Slices of gradients whose bounds a ConcatOffset of the inputs' shapes gives."""
    inputs = concat.inputs[:-1]
    for offsets in _measured_by(concat, "ConcatOffset"):
        along, *shapes = offsets.inputs
        if not _is(along, axis) or not are_shapes_of(shapes, inputs):
            continue
        for node, position, tensor in offsets.uses:
            if node.op != "Slice" or position != 1:
                continue
            whole, _, size = node.inputs
            if size.resolved == shapes[tensor.index].resolved:
                yield InputGradient(node.name, whole.tensor, tensor.index)


def splits_of(concat: Node, axis: int) -> Iterator[str]:
    """Yields the SplitVs of gradients into those of all inputs, whose sizes are measured."""
    inputs = concat.inputs[:-1]
    for pack in _measured_by(concat, "Pack"):
        for row in (use.node for use in pack.uses if use.node.op == "Slice"):
            for sizes in (use.node for use in row.uses):
                for node, position, _ in sizes.uses:
                    if node.op != "SplitV" or position != 1:
                        continue
                    shapes = packed_shapes(sizes.output(), axis)
                    if _is(node.input(2), axis) and are_shapes_of(shapes, inputs):
                        yield node.name


def _measured_by(concat: Node, op: str) -> Iterator[Node]:
    """Yields the nodes of an op that read the shape of a concat's first input that is measured."""
    measures: dict[Node, None] = {}
    for value in concat.inputs[:-1]:
        for node, position, _ in value.uses:
            if node.op in MEASURES:
                for reader, _, _ in node.output(position).uses:
                    if reader.op == op:
                        measures[reader] = None
    yield from measures


def _is(axis: Value, number: int) -> bool:
    """Whether an axis is a number; stock takes it modulo the rank."""
    source = axis.producer
    first, *rank = (part.item for part in (source.inputs if source.op == "FloorMod" else (axis,)))
    if first is None or None in rank:
        return False
    return bool((first % rank[0] if rank else first) == number)
