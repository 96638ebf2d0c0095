"""Static shapes of tensors that TensorFlow's shape functions do not infer from a node's inputs.

All others are left to them, see `shape_functions`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy.typing as npt
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from fusion.passes.graph.tensor import BRANCH_OPS, NEXT_ITERATIONS, VALUE_READS, Shape, Tensor, dims
from fusion.schema.names import (
    GROUPED_CROSS,
    GROUPED_IDS,
    GROUPED_SPLIT,
    PARSE_EXAMPLE,
    PARSE_SEQUENCE,
)

#: Ranks of the outputs of ops that have them whatever their inputs are, as those of stock columns.
_OUTPUT_RANKS = {
    "SparseFillEmptyRows": (2, 1, 1, 1),
    "RaggedFillEmptyRows": (1, 1, 1, 1),
    "Unique": (1, 1),
    "Rank": (0,),
    "Size": (0,),
}
#: What joins the branches of v1 control flow, or begins an iteration of a loop.
_MERGES = frozenset({"Merge", "RefMerge"})
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})


class _Edges(Protocol):
    """The ops of a graph, and what they read."""

    def op(self, name: str) -> str: ...

    def inputs(self, name: str) -> tuple[Tensor, ...]: ...


class _View(_Edges, Protocol):
    """What the rules ask of a graph, see `GraphView`."""

    def attr(self, name: str, key: str) -> attr_value_pb2.AttrValue | None: ...

    def int_attr(self, name: str, key: str) -> int: ...

    def shape_attr(self, name: str) -> Shape | None: ...

    def constant(self, tensor: Tensor) -> npt.NDArray[Any] | None: ...

    def variable_shape(self, handle: Tensor) -> Shape | None: ...


class _Shapes(Protocol):
    """The shapes of all tensors, see `Shapes`."""

    def shape(self, tensor: Tensor) -> Shape | None: ...


def structural_shape(
    view: _View, shapes: _Shapes, node: node_def_pb2.NodeDef, index: int
) -> Shape | None:
    """Returns the shape of output `index` as far as a rule says it, from those of the inputs."""
    inputs = view.inputs(node.name)
    if node.op in _PLACEHOLDERS:
        sizes = view.shape_attr(node.name)
        # Old producers wrote an unknown shape as a scalar shape.
        return sizes if sizes or node.op == "PlaceholderWithDefault" else None
    if node.op == "Const":
        return dims(node.attr["value"].tensor.tensor_shape)
    if node.op in BRANCH_OPS:
        return shapes.shape(inputs[0])
    if node.op in _OUTPUT_RANKS:
        ranks = _OUTPUT_RANKS[node.op]
        return (None,) * ranks[index] if index < len(ranks) else None
    if node.op in VALUE_READS:
        return view.variable_shape(inputs[index])
    if node.op == PARSE_EXAMPLE:
        return _parsed(view, shapes, node.name, index)
    if node.op == PARSE_SEQUENCE:
        return _parsed_sequence(view, shapes, node.name, index)
    if node.op == GROUPED_IDS:
        return shapes.shape(inputs[index])
    if node.op in _COUNTS:
        return _in_form(node, index)
    rule = _SHAPE_RULES.get(node.op)
    return rule(view, shapes, node.name) if rule is not None else None


def is_of_loop(view: _Edges, name: str) -> bool:
    """Whether a node begins an iteration of a v1 loop."""
    if view.op(name) not in _MERGES:
        return False
    return any(view.op(tensor.node) in NEXT_ITERATIONS for tensor in view.inputs(name))


def _looked_up(view: _View, shapes: _Shapes, name: str) -> Shape | None:
    """The shape of rows of a variable."""
    handle, ids = view.inputs(name)
    of, picks = view.variable_shape(handle), shapes.shape(ids)
    if not of or picks is None or view.int_attr(name, "batch_dims"):
        return None
    return (*picks, *of[1:])


def _values(view: _View, shapes: _Shapes, name: str) -> Shape | None:
    """The shape of the values of keys, each of which has that of the default."""
    keys, value = map(shapes.shape, view.inputs(name)[1:3])
    return None if keys is None or value is None else (*keys, *value)


#: Ops that give ids, rows and dense shapes, and the attrs with their number.
_COUNTS = {GROUPED_CROSS: "num_crosses", GROUPED_SPLIT: "num_columns"}


def _in_form(node: node_def_pb2.NodeDef, index: int) -> Shape | None:
    """The shape of an output of such an op."""
    part, number = divmod(index, node.attr[_COUNTS[node.op]].i)
    form = node.attr["forms"].list.s[number]
    if part == 0:
        return (None,) * (2 if form == b"matrix" else 1)
    return (None, 2) if part == 1 and form == b"indices" else (2,) if part == 2 else (None,)


def _ints(view: _View, name: str, key: str) -> list[int]:
    attr = view.attr(name, key)
    return [] if attr is None else [*attr.list.i]


def _dense_shapes(view: _View, name: str, part: str) -> list[Shape]:
    """The shapes of dense features of an op that parses, without the batch."""
    rest = iter(_ints(view, name, f"{part}dense_dims"))
    ranks = _ints(view, name, f"{part}dense_ranks")
    sizes = [[next(rest) for _ in range(rank)] for rank in ranks]
    return [tuple(None if size < 0 else size for size in shape) for shape in sizes]


def _elements(shape: Shape) -> int:
    return prod(size or 0 for size in shape)


def _sparse_shapes(count: int, rank: int) -> list[Shape]:
    """The shapes of indices, values and shapes of so many SparseTensors of a rank."""
    return [(None, rank)] * count + [(None,)] * count + [(rank,)] * count


def _parsed(view: _View, shapes: _Shapes, name: str, index: int) -> Shape | None:
    """The shape of an output of the op that parses Examples."""
    batch = shapes.shape(view.inputs(name)[0])
    if batch is None:
        return None
    found = _sparse_shapes(view.int_attr(name, "num_sparse"), 1 + len(batch))
    outputs: dict[int, list[Shape]] = {}
    numbers = _ints(view, name, "dense_outputs")
    for number, shape in zip(numbers, _dense_shapes(view, name, ""), strict=True):
        outputs.setdefault(number, []).append(shape)
    for one in outputs.values():
        is_own = len(one) == 1
        found.append((*batch, *(one[0] if is_own else (sum(map(_elements, one)),))))
    return found[index] if index < len(found) else (None,)


def _parsed_sequence(view: _View, shapes: _Shapes, name: str, index: int) -> Shape | None:
    """The shape of an output of the op that parses SequenceExamples."""
    batch = shapes.shape(view.inputs(name)[0])
    if batch is None:
        return None
    # Row splits of one Example are a number.
    splits: Shape = (None,) if batch else ()
    found: list[Shape] = []
    for part, rank in (("context", 1), ("feature_list", 2)):
        types = view.attr(name, f"{part}_ragged_value_types")
        ragged = 0 if types is None else len(types.list.type)
        dense = _dense_shapes(view, name, f"{part}_")
        found += _sparse_shapes(view.int_attr(name, f"num_{part}_sparse"), rank + len(batch))
        found += [(*batch, *shape) for shape in dense]
        found += [batch] * len(dense) if part == "feature_list" else []
        found += [(None,)] * ragged + [splits] * ragged
        found += [(None,)] * ragged if part == "feature_list" else []
    return found[index]


_SHAPE_RULES: dict[str, Callable[[_View, _Shapes, str], Shape | None]] = {
    "LookupTableFindV2": _values,
    "ResourceGather": _looked_up,
}
