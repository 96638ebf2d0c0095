"""Static shapes of the tensors of a graph: those that are recorded, and those that follow.

TensorFlow runs all loops as v1 loops. An iteration begins with Merges, each of what came in and of
what the iteration before handed on, whose shapes follow from each other: that of what came in is
assumed, and unless an iteration hands on the same, what both have in common is assumed next.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any, Protocol

import numpy.typing as npt
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from fusion.passes.graph.shape_functions import ShapeFunctions
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.static_shapes import is_of_loop, structural_shape
from fusion.passes.graph.tensor import NEXT_ITERATIONS, Shape, Tensor, dims

#: How far recorded shapes are followed through ops that are made of each other.
_MAX_DEPTH = 64
#: How often a loop is gone through. A size is lost each time, and a whole shape from then on.
_MAX_ROUNDS = 16


class _View(Protocol):
    """What is asked of a graph, see `GraphView`."""

    nodes: dict[str, node_def_pb2.NodeDef]
    signatures: OpSignatures

    def op(self, name: str) -> str: ...

    def inputs(self, name: str) -> tuple[Tensor, ...]: ...

    def attr(self, name: str, key: str) -> attr_value_pb2.AttrValue | None: ...

    def int_attr(self, name: str, key: str) -> int: ...

    def shape_attr(self, name: str) -> Shape | None: ...

    def constant(self, tensor: Tensor) -> npt.NDArray[Any] | None: ...

    def dtype(self, tensor: Tensor) -> int: ...

    def variable_shape(self, handle: Tensor) -> Shape | None: ...


class Shapes:
    """The static shapes of a view, which has to outlive them.

    Args:
        view: the graph, by a weak reference.
        loops: shapes of the Merges that begin iterations of loops.
        is_trial: whether other such Merges are assumed to have the shape of what comes in.
    """

    def __init__(self, view: _View, loops: dict[str, Shape | None], is_trial: bool = False) -> None:
        self._view = view
        self._loops = loops
        self._is_trial = is_trial
        self._shapes: dict[Tensor, Shape | None] = {}
        self._known: dict[Tensor, Shape | None] = {}
        self._functions: ShapeFunctions | None = None
        self._depth = 0

    def shape(self, tensor: Tensor) -> Shape | None:
        """Returns the static shape with None for unknown sizes, or None for an unknown rank."""
        if tensor not in self._shapes:
            known = self.known(tensor)
            self._shapes[tensor] = self._inferred(tensor) if known is None else known
        return self._shapes[tensor]

    def integers(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """Returns int32 or int64 elements that follow from constants and from known shapes."""
        return self._of_tensorflow().integers(tensor)

    def _inferred(self, tensor: Tensor) -> Shape | None:
        return self._of_tensorflow().shape(tensor)

    def _of_tensorflow(self) -> ShapeFunctions:
        if self._functions is None:
            # This object has that one, and a circle would be looked for long in large graphs.
            self._functions = ShapeFunctions(self._view, weakref.proxy(self))
        return self._functions

    def known(self, tensor: Tensor) -> Shape | None:
        """Returns the static shape as far as it is recorded, or a rule of ours says it.

        None for any other.
        """
        if tensor not in self._known:
            if self._depth == _MAX_DEPTH:
                return None
            self._depth += 1
            try:
                self._known[tensor] = self._known_shape(tensor)
            finally:
                self._depth -= 1
        return self._known[tensor]

    def _known_shape(self, tensor: Tensor) -> Shape | None:
        node = self._view.nodes.get(tensor.node)
        if node is None:
            return None
        if "_output_shapes" in node.attr:
            shapes = node.attr["_output_shapes"].list.shape
            if tensor.index < len(shapes) and not shapes[tensor.index].unknown_rank:
                return dims(shapes[tensor.index])
        if is_of_loop(self._view, node.name):
            return () if tensor.index else self._of_loop(node.name)
        return structural_shape(self._view, self, node, tensor.index)

    def _of_loop(self, merge: str) -> Shape | None:
        """Returns the shape that a Merge has in each iteration of its loop."""
        if merge not in self._loops:
            if self._is_trial:
                self._loops[merge] = None
                self._loops[merge] = self._joined(merge, is_first=True)
            else:
                self._loops |= _solved(self._view, merge, self._loops)
        return self._loops[merge]

    def corrected(self, merge: str) -> Shape | None:
        """Returns what the assumed shape of a Merge and those of its inputs have in common."""
        return _common(self._loops[merge], self._joined(merge))

    def _joined(self, merge: str, *, is_first: bool = False) -> Shape | None:
        """Returns what the inputs of a Merge have in common, all or those of a first iteration."""
        view = self._view
        again = {one for one in view.inputs(merge) if view.op(one.node) in NEXT_ITERATIONS}
        came_in = [one for one in view.inputs(merge) if one not in again]
        handed_on = () if is_first else [view.inputs(one.node)[0] for one in again]
        shapes = [self.shape(tensor) for tensor in (*came_in, *handed_on)]
        common = shapes[0] if shapes else None
        for shape in shapes[1:]:
            common = _common(common, shape)
        return common


def _solved(view: _View, merge: str, solved: dict[str, Shape | None]) -> dict[str, Shape | None]:
    """Returns the shapes of a Merge and of those that it depends on, of its loop and of others."""
    assumed = dict(solved)
    for number in count():
        trial = Shapes(view, assumed, is_trial=True)
        trial.shape(Tensor(merge))
        checked, corrections = set(solved), dict[str, Shape | None]()
        while waiting := assumed.keys() - checked:
            # To check one may lead to others.
            for name in sorted(waiting):
                corrected = trial.corrected(name)
                if corrected != assumed[name]:
                    corrections[name] = corrected if number < _MAX_ROUNDS else None
            checked |= waiting
        if not corrections:
            break
        assumed |= corrections
    return assumed


def _common(one: Shape | None, other: Shape | None) -> Shape | None:
    """Returns what is true of two shapes."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))
