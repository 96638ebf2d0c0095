"""What a function takes from the main graph of a model: variables, hash tables, constants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from tensorflow.core.framework import (
    graph_pb2,
    node_def_pb2,
    op_def_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.reach import reached
from fusion.runtime.tensorflow.private import op_def_registry
from fusion.saved_model.errors import ModelError
from fusion.saved_model.model.meta_graph import node_name

_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_REF_VARIABLES = ("Variable", "VariableV2")
_INPUTS = ("Placeholder", "PlaceholderV2")


@dataclass(frozen=True)
class Capture:
    """A node of the main graph whose output a function gets as an argument.

    Attributes:
        node: the node.
        object: the number of what the node stands for in the object graph; None in a model that
            has no object graph.
    """

    node: node_def_pb2.NodeDef
    object: int | None

    @property
    def is_reference(self) -> bool:
        """Whether it is a ref variable: the function gets its value, not the variable."""
        return self.node.op in _REF_VARIABLES

    @property
    def is_handle(self) -> bool:
        """Whether it is the handle of a variable or a table."""
        return self.dtype == types_pb2.DT_RESOURCE

    @property
    def dtype(self) -> int:
        """The DataType of the argument."""
        (output,) = op_def_registry.get(self.node.op).output_arg
        return int(output.type or self.node.attr[output.type_attr].type)

    @property
    def shape(self) -> tensor_shape_pb2.TensorShapeProto:
        """The shape of the argument, () of a handle."""
        if self.node.op == "Const":
            return self.node.attr["value"].tensor.tensor_shape
        if self.is_reference:
            return self.node.attr["shape"].shape
        return tensor_shape_pb2.TensorShapeProto(unknown_rank=not self.is_handle)

    def argument(self, name: str) -> op_def_pb2.OpDef.ArgDef:
        """Returns the argument; that of a variable's handle has the dtype and shape of its rows."""
        result = op_def_pb2.OpDef.ArgDef(name=name, type=self.dtype)
        if self.node.op == "VarHandleOp":
            attrs = self.node.attr
            result.handle_data.add(dtype=attrs["dtype"].type, shape=attrs["shape"].shape)
        return result


@dataclass(frozen=True)
class Body:
    """The nodes of a graph that its outputs need, in its order.

    Attributes:
        nodes: those that compute.
        captures: those that stand for state or constants of the model.
    """

    nodes: list[node_def_pb2.NodeDef]
    captures: list[Capture]


def body_of(
    meta: meta_graph_pb2.MetaGraphDef,
    graph: graph_pb2.GraphDef,
    inputs: Collection[str],
    outputs: Iterable[str],
) -> Body:
    """Returns what a graph computes its outputs with.

    Args:
        meta: the model, whose main graph has the variables and tables under the same names.
        graph: the graph.
        inputs: the nodes that are fed.
        outputs: the nodes that are fetched.

    Raises:
        ModelError: a node has state that no function can be passed, or that the model does not
            have; or an op that is unknown; or it is a Placeholder that is not among the inputs.
    """
    main = {node.name: node for node in meta.graph_def.node}
    objects = dict(_bound_nodes(meta))
    nodes = {node.name: node for node in graph.node}

    def is_captured(node: node_def_pb2.NodeDef) -> bool:
        is_bound = node.name in objects and _is_same(node, main[node.name])
        return node.name not in inputs and (is_bound or _has_state(node.op))

    def sources(name: str) -> list[str]:
        if name in inputs or is_captured(nodes[name]):
            return []
        return [source for text in nodes[name].input if (source := node_name(text)) in nodes]

    needed = reached(outputs, sources)
    result = Body([], [])
    functions = {function.signature.name for function in graph.library.function}
    has_objects = bool(meta.object_graph_def.nodes)
    for node in graph.node:
        if node.name not in needed or node.name in inputs:
            continue
        if is_captured(node):
            problem = _capture_problem(node, main.get(node.name), has_objects)
            if problem is None and has_objects and node.name not in objects:
                problem = "no signature of the model reads it"
            result.captures.append(Capture(node, objects.get(node.name)))
        else:
            problem = None if node.op in functions else _problem(node)
            result.nodes.append(node)
        if problem is not None:
            raise ModelError(f"it needs {node.name} ({node.op}): {problem}")
    return result


def _bound_nodes(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, int]]:
    """Yields (node, number of its object) of what calls in the main graph pass to functions.

    The last arguments of a function are the objects that it is bound to.
    """
    functions = meta.object_graph_def.concrete_functions
    for node in meta.graph_def.node:
        if node.op in _CALLS and (name := node.attr["f"].func.name) in functions:
            bound = functions[name].bound_inputs
            inputs = [text for text in node.input if not text.startswith("^")]
            if bound:
                last = map(node_name, inputs[-len(bound) :])
                yield from zip(last, bound, strict=False)


def _is_same(node: node_def_pb2.NodeDef, other: node_def_pb2.NodeDef) -> bool:
    """Whether nodes of one name are the same: a graph may have a Const of its own of that name."""
    inputs = [[text for text in n.input if not text.startswith("^")] for n in (node, other)]
    values = [n.attr.get("value") for n in (node, other)]
    return node.op == other.op and inputs[0] == inputs[1] and values[0] == values[1]


def _has_state(op: str) -> bool:
    """Whether nodes of an op stand for state that lasts from run to run."""
    known = op_def_registry.get(op)
    if known is None or not known.is_stateful:
        return False
    return any(attr.name == "shared_name" for attr in known.attr)


def _capture_problem(
    node: node_def_pb2.NodeDef, other: node_def_pb2.NodeDef | None, has_objects: bool
) -> str | None:
    """Why a node of a graph cannot be captured from the one of this name in the main graph."""
    if other is None or other.op != node.op:
        return "the model has no such node"
    if node.op in _REF_VARIABLES:
        return "a ref variable is no object" if has_objects else None
    outputs = op_def_registry.get(node.op).output_arg
    is_handle = len(outputs) == 1 and outputs[0].type == types_pb2.DT_RESOURCE
    if is_handle or not _has_state(node.op):
        return None
    return "no function can be passed its state"


def _problem(node: node_def_pb2.NodeDef) -> str | None:
    """Why a node cannot be in a function."""
    known = op_def_registry.get(node.op)
    if known is None:
        return "the op is unknown"
    if node.op in _INPUTS:
        return "it is no input of the signature"
    if any(arg.is_ref for arg in (*known.input_arg, *known.output_arg)):
        return "functions have no ref variables"
    return None
