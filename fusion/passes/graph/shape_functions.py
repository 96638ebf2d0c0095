"""Shapes as TensorFlow's own shape functions infer them.

Python knew them when the graph was made, and a graph that is optimized or loaded has lost them, but
they follow from its nodes. So nodes are added to a graph of TensorFlow's own, which is never run:
those whose shapes are asked for, and what these are made of, up to tensors of known shape.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.graph.signatures import OpSignatures, arg_length
from fusion.passes.graph.static_shapes import is_of_loop
from fusion.passes.graph.tensor import ARG_OP, Shape, Tensor
from fusion.runtime.tensorflow.scratch_graph import Output, ScratchGraph, output_count

#: Tensors of these types may be sizes or axes, of which more than the shape matters.
_COUNTING = {types_pb2.DT_INT32: np.int32, types_pb2.DT_INT64: np.int64}
#: None of these has more elements; constants that have are as good as their shape.
_MAX_SIZES = 4096


class _View(Protocol):
    """What is asked of a graph, see `GraphView`."""

    nodes: dict[str, node_def_pb2.NodeDef]
    signatures: OpSignatures

    def op(self, name: str) -> str: ...

    def inputs(self, name: str) -> tuple[Tensor, ...]: ...

    def dtype(self, tensor: Tensor) -> int: ...


class _Shapes(Protocol):
    """The shapes that are known without TensorFlow, see `Shapes`."""

    def known(self, tensor: Tensor) -> Shape | None: ...


class ShapeFunctions:
    """What TensorFlow infers of the tensors of a view, which has to outlive it."""

    def __init__(self, view: _View, shapes: _Shapes) -> None:
        self._view, self._shapes = view, shapes
        self._graph = ScratchGraph()
        self._operations: dict[str, int | None] = {}
        self._inputs: dict[Tensor, Output | None] = {}

    def shape(self, tensor: Tensor) -> Shape | None:
        """Returns the shape of a tensor that has no known one, None for an unknown rank."""
        if tensor.node not in self._operations:
            self._add(tensor.node)
        operation = self._operations[tensor.node]
        if operation is None or tensor.index >= output_count(operation):
            return None
        return self._graph.shape(Output(operation, tensor.index))

    def integers(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """Returns int32 or int64 elements that follow from constants and from known shapes."""
        dtype = _COUNTING.get(self._view.dtype(tensor))
        shape = None if dtype is None else self.shape(tensor)
        if dtype is None or shape is None or None in shape:
            return None
        operation = self._operations[tensor.node]
        data = None if operation is None else self._graph.value(Output(operation, tensor.index))
        return None if data is None else np.frombuffer(data, dtype).reshape(shape)  # type: ignore[arg-type]

    def _add(self, root: str) -> None:
        """Adds a node, and those that it depends on before it."""
        waiting, entered = [root], set[str]()
        while waiting:
            name = waiting[-1]
            if name in self._operations:
                waiting.pop()
            elif name in entered or not self._is_copied(name):
                self._operations[name] = self._operation(name) if name in entered else None
            else:
                entered.add(name)
                waiting += [one.node for one in self._view.inputs(name) if not self._is_leaf(one)]

    def _is_copied(self, name: str) -> bool:
        """Whether there is something to learn from a node."""
        view, op = self._view, self._view.op(name)
        if op == ARG_OP or view.signatures.is_function(op) or not view.signatures.op_def(op):
            return False
        return not is_of_loop(view, name)

    def _is_leaf(self, tensor: Tensor) -> bool:
        """Whether a tensor's shape is known, and nothing else matters."""
        shape = self._shapes.known(tensor)
        if shape is None:
            return False
        if self._view.dtype(tensor) not in _COUNTING:
            return True
        return None in shape or math.prod(size or 0 for size in shape) > _MAX_SIZES

    def _operation(self, name: str) -> int | None:
        """Adds a node whose inputs are there, as far as they can be; None if it cannot be added."""
        node, inputs = self._view.nodes[name], deque(map(self._input, self._view.inputs(name)))
        definition = self._view.signatures.op_def(node.op)
        assert definition is not None
        arguments: list[Output | list[Output]] = []
        for arg in definition.input_arg:
            count = arg_length(arg, node.attr)
            if not 0 <= count <= len(inputs):
                return None
            of_arg = [one for one in (inputs.popleft() for _ in range(count)) if one is not None]
            if len(of_arg) < count:
                return None
            arguments.append(of_arg if arg.number_attr or arg.type_list_attr else of_arg[0])
        if inputs:
            return None
        attrs = {
            key: value.SerializeToString()
            for key, value in node.attr.items()
            if not key.startswith("_")
        }
        return self._graph.add(node.op, arguments, attrs)

    def _input(self, tensor: Tensor) -> Output | None:
        if tensor not in self._inputs:
            known = self._shapes.known(tensor)
            copy = None if self._is_leaf(tensor) else self._copy(tensor)
            if copy is not None and known is not None and self._tells_less(copy, known):
                copy = None
            dtype = self._view.dtype(tensor)
            if copy is None and dtype:
                copy = self._graph.placeholder(dtype, known)
            self._inputs[tensor] = copy
        return self._inputs[tensor]

    def _copy(self, tensor: Tensor) -> Output | None:
        operation = self._operations.get(tensor.node)
        if operation is None or tensor.index >= output_count(operation):
            return None
        return Output(operation, tensor.index)

    def _tells_less(self, copy: Output, known: Shape) -> bool:
        """Whether TensorFlow infers less than is known, as of what is read of a variable."""
        inferred = self._graph.shape(copy)
        if inferred is None or len(inferred) != len(known):
            return True
        return any(a is None and b is not None for a, b in zip(inferred, known, strict=True))
