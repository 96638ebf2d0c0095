"""A part of a main graph as a function of the library.

x -> MatMul -> out        becomes  f(x, unknown) = identity
w -> ReadVariableOp -/             unknown is the handle of w
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message
from tensorflow.core.framework import function_pb2, node_def_pb2, tensor_shape_pb2, types_pb2

from fusion.passes.graph.calls import functions_run_by
from fusion.passes.graph.signatures import OpSignatures
from fusion.saved_model.errors import ModelError
from fusion.saved_model.requests.captures import Capture

M = TypeVar("M", bound=Message)

_CONTROL_FLOW = frozenset(["Enter", "RefEnter", "Switch", "RefSwitch"])
"""Ops of TensorFlow 1, behind which a node may not run, or run often."""

_DIGITS = 12
"""Of the number at the end of a function's name."""


@dataclass(frozen=True)
class Argument:
    """An input of a signature, or a part of one that is sparse.

    Attributes:
        name: what callers pass it by.
        node: the Placeholder in the graph.
        dtype: its DataType.
        shape: its shape.
    """

    name: str
    node: str
    dtype: int
    shape: tensor_shape_pb2.TensorShapeProto


@dataclass(frozen=True)
class Result:
    """An output of a signature, or a part of one that is sparse.

    Attributes:
        name: what callers know it by.
        node: the node in the graph, which may be the Placeholder of an argument.
        index: of the node's output.
        dtype: its DataType.
        shape: its shape.
    """

    name: str
    node: str
    index: int
    dtype: int
    shape: tensor_shape_pb2.TensorShapeProto


@dataclass(frozen=True)
class Interface:
    """What goes into a function and comes out of it.

    Attributes:
        arguments: what callers pass, the first inputs.
        captures: what the model passes, the other inputs.
        results: the outputs.
    """

    arguments: Sequence[Argument]
    captures: Sequence[Capture]
    results: Sequence[Result]


def free_name(base: str, taken: Container[str]) -> str:
    """Returns `base`, with a number behind it if the name is taken, as TensorFlow does."""
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def python_name(name: str) -> str:
    """Returns the parameter that TensorFlow has for an argument of any name."""
    result = re.sub("[^a-zA-Z0-9_]", "_", name)
    return result if result[:1].isalpha() else f"arg_{result}"


def function_of(
    nodes: Sequence[node_def_pb2.NodeDef], interface: Interface, signatures: OpSignatures
) -> function_pb2.FunctionDef:
    """Returns a function without a name.

    Args:
        nodes: what it computes, with the inputs that they have in a main graph.
        interface: its inputs and outputs, by nodes of this main graph.
        signatures: of the ops of the nodes, of library functions too.

    Raises:
        ModelError: an input is an output that its node does not have.
    """
    function, all_nodes = function_pb2.FunctionDef(), {node.name: node for node in nodes}
    inner = {node.name for node in nodes if not _is_handle(node)}
    taken = {*inner}
    names = _add_arguments(function, interface, taken)

    def inside(text: str) -> str:
        """The input of a node as functions have it, "" for a control edge from an argument."""
        node, _, index = text.removeprefix("^").partition(":")
        if text.startswith("^"):
            return text if node in inner else ""
        if node in names:
            return names[node]
        if node in inner:
            return _output(all_nodes[node], int(index or 0), signatures)
        return inside(all_nodes[node].input[0])

    for node in nodes:
        if node.name not in inner:
            continue
        copy = function.node_def.add()
        copy.CopyFrom(node)
        copy.input[:] = filter(None, map(inside, node.input))
        _forget_neighbours(copy, inner)
    for result in interface.results:
        node = function.node_def.add(name=_add_name("Identity", taken), op="Identity")
        node.input.append(inside(f"{result.node}:{result.index}"))
        node.attr["T"].type = result.dtype
        node.attr["_output_shapes"].list.shape.add().CopyFrom(result.shape)
        output = free_name("identity", function.ret)
        function.signature.output_arg.add(name=output, type=result.dtype)
        function.ret[output] = f"{node.name}:output:0"
    stateful = [n.name for n in nodes if n.name in inner and signatures.is_stateful(n.op)]
    if _CONTROL_FLOW.isdisjoint(node.op for node in nodes):
        # TensorFlow inlines no function in which one of these is not sure to run.
        function.signature.control_output.extend(stateful)
        function.control_ret.update({name: name for name in stateful})
    function.signature.is_stateful = bool(stateful)
    function.attr["_construction_context"].s = b"kEagerRuntime"
    return function


def _add_arguments(
    function: function_pb2.FunctionDef, interface: Interface, taken: set[str]
) -> dict[str, str]:
    """Adds the arguments of a function, and returns their names by the nodes in the main graph."""
    names, inputs = dict[str, str](), function.signature.input_arg
    shapes = function.attr["_input_shapes"].list.shape
    for index, argument in enumerate(interface.arguments):
        names[argument.node] = _add_name(python_name(argument.name).lower(), taken)
        inputs.add(name=names[argument.node], type=argument.dtype)
        shapes.add().CopyFrom(argument.shape)
        attrs = function.arg_attr[index].attr
        attrs["_user_specified_name"].s = argument.name.encode()
        attrs["_output_shapes"].list.shape.add().CopyFrom(argument.shape)
    for index, capture in enumerate(interface.captures, len(interface.arguments)):
        names[capture.node.name] = _add_name("unknown", taken)
        inputs.add().CopyFrom(capture.argument(names[capture.node.name]))
        shapes.add().CopyFrom(capture.shape)
        if not capture.is_handle:
            attrs = function.arg_attr[index].attr
            attrs["_output_shapes"].list.shape.add().CopyFrom(capture.shape)
    return names


def number_of(*contents: bytes) -> str:
    """Returns a number that other contents do not have.

    Functions have it in their names, as two models of one process may have functions of one name
    only if these are the same.
    """
    digest = hashlib.sha256(b"".join(b"%d\0%s" % (len(one), one) for one in contents)).digest()
    return f"{int.from_bytes(digest[:8], 'big') % 10**_DIGITS:0{_DIGITS}}"


def with_called_functions(
    nodes: Sequence[node_def_pb2.NodeDef],
    library: function_pb2.FunctionDefLibrary,
    others: function_pb2.FunctionDefLibrary,
) -> tuple[Sequence[node_def_pb2.NodeDef], list[function_pb2.FunctionDef]]:
    """Returns nodes as they call functions of another library, and the functions that it lacks.

    TensorFlow's optimizer names functions after the calls that it has specialized them for, so the
    other library may have another function of the same name. Then all get new names.

    Args:
        nodes: the nodes.
        library: the functions that they call.
        others: the other library.
    """
    known = {function.signature.name: function for function in others.function}
    names = functions_run_by(nodes, library)
    called = [function for function in library.function if function.signature.name in names]
    if any(known.get(function.signature.name, function) != function for function in called):
        number = number_of(*(f.SerializeToString(deterministic=True) for f in called))
        renamed = {name: f"{name}_{number}" for name in names}
        called, nodes = [*map(_copied, called)], [*map(_copied, nodes)]
        for function in called:
            function.signature.name = renamed[function.signature.name]
            _rename_calls(function.node_def, renamed)
        _rename_calls(nodes, renamed)
    return nodes, [function for function in called if function.signature.name not in known]


def _rename_calls(nodes: Iterable[node_def_pb2.NodeDef], renamed: Mapping[str, str]) -> None:
    for node in nodes:
        node.op = renamed.get(node.op, node.op)
        for value in node.attr.values():
            for func in [value.func] if value.HasField("func") else value.list.func:
                func.name = renamed.get(func.name, func.name)


def _copied(message: M) -> M:
    result = type(message)()
    result.CopyFrom(message)
    return result


def _is_handle(node: node_def_pb2.NodeDef) -> bool:
    """Whether a node only hands a handle on, as the arguments of an inlined call do."""
    dtype = node.attr["T"].type if node.op == "Identity" else 0
    return dtype == types_pb2.DT_RESOURCE and len(node.input) == 1


def _add_name(base: str, taken: set[str]) -> str:
    name = free_name(base, taken)
    taken.add(name)
    return name


def _output(node: node_def_pb2.NodeDef, index: int, signatures: OpSignatures) -> str:
    """What a function calls an output of a node."""
    outputs = signatures.outputs(node)
    if outputs is None or index >= len(outputs):
        raise ModelError(f"{node.name} ({node.op}) has no output {index}")
    return f"{node.name}:{outputs[index]}"


def _forget_neighbours(node: node_def_pb2.NodeDef, nodes: Container[str]) -> None:
    """Drops colocations with nodes that are not in the function: handles are placed anyway."""
    names = node.attr["_class"].list.s if "_class" in node.attr else []
    inside = [name for name in names if name.decode().removeprefix("loc:@") in nodes]
    if inside:
        names[:] = inside
    else:
        node.attr.pop("_class", None)
