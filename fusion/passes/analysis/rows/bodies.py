"""The bodies of branches and loops, as graphs whose inputs are Placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, types_pb2

from fusion.passes.graph.calls import callees
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP, Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.runtime.tensorflow.private import tensor_util

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True)
class Body:
    """The body of a function, in which other functions are put in the place of their calls.

    Nodes wait for nothing: it is to be looked at, not to be run.

    Attributes:
        nodes: its nodes, with the inputs that they have in a main graph.
        arguments: the names of the Placeholders.
        results: its results.
    """

    nodes: Sequence[node_def_pb2.NodeDef]
    arguments: Sequence[str]
    results: Sequence[Tensor]

    def kept(self) -> list[bool]:
        """Returns of each argument whether the result of its number is this argument."""
        views = GraphView(self.nodes, OpSignatures())
        of_arguments = zip(self.arguments, self.results, strict=False)
        return [views.resolve(result) == Tensor(name) for name, result in of_arguments]

    def sized(
        self,
        signatures: OpSignatures,
        shapes: Sequence[Shape | None],
        values: Sequence[npt.NDArray[Any] | None],
    ) -> GraphView:
        """Returns a view of it for arguments of some shapes.

        Args:
            signatures: of the ops.
            shapes: of the arguments; of the variable, of a handle.
            values: of the arguments that are the same whenever it runs; None for others.
        """
        known = dict(zip(self.arguments, zip(shapes, values, strict=True), strict=True))
        nodes = list[node_def_pb2.NodeDef]()
        for node in self.nodes:
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            nodes.append(copy)
            if node.name not in known:
                continue
            shape, value = known[node.name]
            sizes = copy.attr["shape"].shape
            if value is not None:
                copy.op = "Const"
                copy.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))
            elif copy.attr["dtype"].type == types_pb2.DT_RESOURCE and shape is not None:
                copy.op = ARG_OP
                copy.attr["T"].type = types_pb2.DT_RESOURCE
                sizes = copy.attr["_handle_shapes"].list.shape.add()
            sizes.unknown_rank = shape is None
            for size in shape or ():
                sizes.dim.add(size=-1 if size is None else size)
        return GraphView(nodes, signatures)


class Bodies:
    """The functions of a graph by name, each looked at once."""

    def __init__(self, graph: graph_pb2.GraphDef, signatures: OpSignatures) -> None:
        self._functions = {one.signature.name: one for one in graph.library.function}
        self._signatures = signatures
        self._bodies: dict[str, Body | None] = {}

    def called(self, node: node_def_pb2.NodeDef) -> list[str]:
        """Returns the functions that a node runs, in the order of its attributes."""
        return callees(node, self._functions)

    def body(self, name: str) -> Body | None:
        """Returns a function's body; None if it calls itself."""
        if name not in self._bodies:
            self._bodies[name] = None
            self._bodies[name] = self._read(self._functions[name])
        return self._bodies[name]

    def _read(self, definition: function_pb2.FunctionDef) -> Body | None:
        view = GraphView.of_function(definition, self._signatures)
        nodes, at = list[node_def_pb2.NodeDef](), dict[Tensor, Tensor]()
        arguments = [arg.name for arg in definition.signature.input_arg]
        for name in _in_order(view):
            inputs = [at.get(tensor, tensor) for tensor in view.inputs(name)]
            node = view.nodes[name]
            if node.op in _CALLS or self._signatures.is_function(node.op):
                inner = self._inlined(node, inputs)
                if inner is None:
                    return None
                nodes += inner.nodes
                at |= {Tensor(name, k): tensor for k, tensor in enumerate(inner.results)}
                continue
            copy = node_def_pb2.NodeDef(name=name, op=node.op, input=[*map(str, inputs)])
            if node.op == ARG_OP:
                copy.op = "Placeholder"
                copy.attr["dtype"].CopyFrom(node.attr["T"])
            else:
                for key, value in node.attr.items():
                    if key != "_output_shapes":
                        copy.attr[key].CopyFrom(value)
            nodes.append(copy)
        ends = [view.tensor(definition.ret[arg.name]) for arg in definition.signature.output_arg]
        return Body(nodes, arguments, [at.get(tensor, tensor) for tensor in ends])

    def _inlined(self, call: node_def_pb2.NodeDef, inputs: Sequence[Tensor]) -> Body | None:
        """Returns the body of a function that is called, with names of its own."""
        names = self.called(call)
        body = self.body(names[0]) if len(names) == 1 else None
        if body is None or len(body.arguments) != len(inputs):
            return None
        given: Mapping[str, Tensor] = dict(zip(body.arguments, inputs, strict=True))

        def inside(tensor: Tensor) -> Tensor:
            if tensor.node in given:
                return given[tensor.node]
            return Tensor(f"{call.name}/{tensor.node}", tensor.index)

        nodes = []
        for node in body.nodes:
            if node.name in given:
                continue
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            copy.name = f"{call.name}/{node.name}"
            texts = [text.partition(":") for text in node.input]
            copy.input[:] = [str(inside(Tensor(a, int(k or 0)))) for a, _, k in texts]
            nodes.append(copy)
        return Body(nodes, (), [inside(tensor) for tensor in body.results])


def _in_order(view: GraphView) -> list[str]:
    """Returns the nodes of a function, each behind what it reads."""
    order, entered, done = list[str](), set[str](), set[str]()
    waiting = [*reversed(view.nodes)]
    while waiting:
        name = waiting[-1]
        if name in done or name in entered:
            waiting.pop()
            if name not in done:
                done.add(name)
                order.append(name)
        else:
            entered.add(name)
            waiting += [t.node for t in view.inputs(name) if t.node not in entered]
    return order
