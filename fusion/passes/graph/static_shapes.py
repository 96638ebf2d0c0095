"""Static shapes of tensors that TensorFlow's shape functions do not tell of a node and its inputs.

All others are left to them, see `shape_functions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from fusion.passes.graph.tensor import BRANCH_OPS, VALUE_READS, Shape, Tensor, dims

MERGES = frozenset({"Merge", "RefMerge"})
"""What joins the branches of v1 control flow, or begins an iteration of a loop."""

#: Ranks of the outputs of ops that have them whatever their inputs are, as those of stock columns.
_OUTPUT_RANKS = {
    "SparseFillEmptyRows": (2, 1, 1, 1),
    "RaggedFillEmptyRows": (1, 1, 1, 1),
    "Unique": (1, 1),
    "Range": (1,),
    "Rank": (0,),
    "Size": (0,),
}
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})
_AGAIN = frozenset({"NextIteration", "RefNextIteration"})


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

    def shape(self, tensor: Tensor) -> Shape | None: ...

    def resolve(self, tensor: Tensor) -> Tensor: ...

    def variable_shape(self, handle: Tensor) -> Shape | None: ...


def structural_shape(view: _View, node: node_def_pb2.NodeDef, index: int) -> Shape | None:
    """Returns the shape of output `index` as far as a rule says it."""
    inputs = view.inputs(node.name)
    if node.op in _PLACEHOLDERS:
        sizes = view.shape_attr(node.name)
        # Old producers wrote an unknown shape as a scalar shape.
        return sizes if sizes or node.op == "PlaceholderWithDefault" else None
    if node.op == "Const":
        return dims(node.attr["value"].tensor.tensor_shape)
    if node.op in BRANCH_OPS:
        return view.shape(inputs[0])
    if node.op in _OUTPUT_RANKS:
        ranks = _OUTPUT_RANKS[node.op]
        return (None,) * ranks[index] if index < len(ranks) else None
    if node.op in VALUE_READS:
        return view.variable_shape(inputs[index])
    rule = _SHAPE_RULES.get(node.op)
    return rule(view, node.name, inputs, index) if rule is not None else None


def is_of_loop(view: _Edges, name: str) -> bool:
    """Whether a node that joins tensors begins an iteration of a v1 loop."""
    return any(view.op(tensor.node) in _AGAIN for tensor in view.inputs(name))


def _looked_up(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of rows of a variable."""
    of, picks = view.variable_shape(inputs[0]), view.shape(inputs[1])
    if not of or picks is None or view.int_attr(name, "batch_dims"):
        return None
    return (*picks, *of[1:])


def _found(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of the values of keys, each of which has that of the default."""
    keys, value = view.shape(inputs[1]), view.shape(inputs[2])
    return None if keys is None or value is None else (*keys, *value)


def _invariant(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of what a v1 loop hands on as it came in."""
    if not is_of_loop(view, name):
        return None
    if index:
        return ()
    entered = [tensor for tensor in inputs if view.op(tensor.node) in ("Enter", "RefEnter")]
    again = [tensor for tensor in inputs if view.op(tensor.node) in _AGAIN]
    if len(entered) != 1 or len(again) != 1 or len(inputs) != 2:
        return None
    switch = view.resolve(view.inputs(again[0].node)[0])
    if view.op(switch.node) != "Switch" or switch.index != 1:
        return None
    is_same = view.resolve(view.inputs(switch.node)[0]) == Tensor(name)
    return view.shape(entered[0]) if is_same else None


_SHAPE_RULES: dict[str, Callable[[_View, str, tuple[Tensor, ...], int], Shape | None]] = {
    "LookupTableFindV2": _found,
    "Merge": _invariant,
    "RefMerge": _invariant,
    "ResourceGather": _looked_up,
}
