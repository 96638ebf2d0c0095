"""A signature that is added to a model.

serving_default: x -> f -> y      becomes  serving_default: x -> f -> y
                                           key:             x' -> g -> z
g captures the variables and tables that f does
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, tensor_shape_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.signatures import OpSignatures
from fusion.saved_model.errors import ModelError
from fusion.saved_model.flat import tensor_names
from fusion.saved_model.model.meta_graph import node_name, update_op_list
from fusion.saved_model.requests.captures import body_of
from fusion.saved_model.requests.functions import (
    Argument,
    Interface,
    Result,
    free_name,
    function_of,
    number_of,
    python_name,
    with_called_functions,
)
from fusion.saved_model.requests.objects import add_object

_CALL = "StatefulPartitionedCall"
_DEFAULT = "PlaceholderWithDefault"
_COPIED = ("config_proto", "_collective_manager_ids")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


@dataclass(frozen=True)
class ComputedSignature:
    """A signature, and the graph that computes it.

    Attributes:
        graph: a graph without calls. Variables and tables are nodes with the names that they have
            in the main graph of the model.
        inputs: tensors of Placeholders in the graph, by the names of the arguments.
        outputs: tensors in the graph, by the names of the results.
        method_name: of the SignatureDef.
    """

    graph: graph_pb2.GraphDef
    inputs: Mapping[str, meta_graph_pb2.TensorInfo]
    outputs: Mapping[str, meta_graph_pb2.TensorInfo]
    method_name: str = "tensorflow/serving/predict"


def add_signature(
    meta: meta_graph_pb2.MetaGraphDef, key: str, signature: ComputedSignature
) -> None:
    """Adds a signature to a model, in place; the same one adds the same bytes.

    The graph becomes a function that the main graph calls. A model with an object graph gets an
    object for it, so that `tf.saved_model.load(path).signatures[key]` is that function. In a model
    without one the function may also have the values of ref variables.

    Args:
        meta: the model.
        key: of the signature.
        signature: the signature.

    Raises:
        ModelError: the model has a signature `key`; two arguments are the same; an input or output
            is not in the graph; an input is no Placeholder, or one whose default is no constant; or
            a node has state that the model does not have, that none of its signatures reads, or
            that no function can be passed. The model is then unchanged.
    """
    subject = f"signature {key!r}"
    if not key:
        raise ModelError("a signature has no name")
    if key in meta.signature_def:
        raise ModelError(f"{subject}: the model has one of this name")
    has_objects = bool(meta.object_graph_def.nodes)
    graph = signature.graph
    with _errors_of(subject):
        arguments = _arguments(signature, has_objects)
        results = _results(signature, has_objects)
        fed, fetched = {one.node for one in arguments}, [one.node for one in results]
        body = body_of(meta, graph, fed, fetched)
        library = meta.graph_def.library
        nodes, functions = with_called_functions(body.nodes, graph.library, library)
        interface = Interface(arguments, body.captures, results)
        signatures = OpSignatures((*graph.library.function, *functions))
        function = function_of(nodes, interface, signatures)
    # Each signature has a function of its own: an object graph has one of each name.
    texts = [key, *(argument.name for argument in arguments), *(result.name for result in results)]
    number = number_of(function.SerializeToString(deterministic=True), *map(str.encode, texts))
    known = {known.signature.name for known in library.function}
    function.signature.name = free_name(f"__inference_signature_wrapper_{number}", known)
    library.function.extend((*functions, function))
    definition = meta.signature_def[key]
    definition.method_name = signature.method_name
    inputs = _add_inputs(meta.graph_def, key, signature, arguments)
    _add_infos(definition.inputs, signature.inputs, inputs)
    outputs = _add_call(meta.graph_def, key, function, inputs, interface)
    _add_infos(definition.outputs, signature.outputs, outputs)
    if has_objects:
        add_object(meta.object_graph_def, key, function.signature.name, interface)
    update_op_list(meta)


@contextmanager
def _errors_of(subject: str) -> Iterator[None]:
    """Puts what an error is about in front of it."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{subject}: {error}") from None


def _arguments(signature: ComputedSignature, has_objects: bool) -> list[Argument]:
    """The inputs of a signature in the order of TensorFlow: sorted by their Python names."""
    nodes = {node.name: node for node in signature.graph.node}
    result, names = list[Argument](), dict[str, str]()
    for name in sorted(signature.inputs, key=lambda name: (python_name(name), name)):
        if has_objects and (other := names.setdefault(python_name(name), name)) != name:
            raise ModelError(f"arguments {other!r} and {name!r} have the same name in Python")
        for part, tensor, shape in _parts(name, signature.inputs[name], has_objects):
            node = nodes.get(node_name(tensor))
            if node is None or node.op not in ("Placeholder", _DEFAULT):
                raise ModelError(f"argument {name!r}: {tensor} is no Placeholder of its graph")
            if node.op == _DEFAULT and nodes[node_name(node.input[0])].op != "Const":
                raise ModelError(f"argument {name!r}: the default of {node.name} is no constant")
            others = [other.name for other in result if other.node == node.name]
            if others:
                raise ModelError(f"arguments {others[0]!r} and {part!r} are both {node.name}")
            result.append(Argument(part, node.name, node.attr["dtype"].type, shape))
    return result


def _results(signature: ComputedSignature, has_objects: bool) -> list[Result]:
    """The outputs of a signature in the order of TensorFlow: sorted by their names."""
    nodes = {node.name: node for node in signature.graph.node}
    signatures = OpSignatures(signature.graph.library.function)
    result = list[Result]()
    for name, info in sorted(signature.outputs.items()):
        for part, tensor, shape in _parts(name, info, has_objects):
            node, _, index = tensor.partition(":")
            dtypes = signatures.output_types(nodes[node]) if node in nodes else ()
            if int(index or 0) >= len(dtypes):
                raise ModelError(f"output {name!r}: {tensor} is no tensor of its graph")
            dtype = dtypes[int(index or 0)]
            result.append(Result(part, node, int(index or 0), dtype, shape))
    if not result:
        raise ModelError("it has no outputs")
    return result


def _parts(
    name: str, info: meta_graph_pb2.TensorInfo, has_objects: bool
) -> Iterator[tuple[str, str, tensor_shape_pb2.TensorShapeProto]]:
    """Yields (name, tensor, shape) of a tensor, or of those that a sparse one is made of."""
    if info.WhichOneof("encoding") == "name":
        yield name, info.name, info.tensor_shape
    elif has_objects:
        raise ModelError(f"{name!r} is no dense tensor")
    else:
        unknown = tensor_shape_pb2.TensorShapeProto(unknown_rank=True)
        for index, tensor in enumerate(tensor_names(info)):
            yield f"{name}_{index}", tensor, unknown


def _add_inputs(
    graph: graph_pb2.GraphDef,
    key: str,
    signature: ComputedSignature,
    arguments: Sequence[Argument],
) -> dict[str, str]:
    """Adds a Placeholder for each argument; returns tensors by those of the signature's graph."""
    taken, names = {node.name for node in graph.node}, dict[str, str]()
    nodes = {node.name: node for node in signature.graph.node}

    def add(node: node_def_pb2.NodeDef, name: str) -> node_def_pb2.NodeDef:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.name = free_name(name, taken)
        copy.attr.pop("_class", None)
        taken.add(copy.name)
        return copy

    for argument in arguments:
        placeholder = add(nodes[argument.node], _node_name(key, argument.name))
        names[f"{argument.node}:0"] = f"{placeholder.name}:0"
        if placeholder.op == _DEFAULT:
            value = nodes[node_name(placeholder.input[0])]
            placeholder.input[:] = [add(value, f"{placeholder.name}/input").name]
    return names


def _add_call(
    graph: graph_pb2.GraphDef,
    key: str,
    function: function_pb2.FunctionDef,
    inputs: Mapping[str, str],
    interface: Interface,
) -> dict[str, str]:
    """Adds a call of a function; returns its outputs by those of the signature's graph."""
    taken = {node.name for node in graph.node}
    others = [node for node in graph.node if node.op == _CALL]
    arguments = [node_name(inputs[f"{argument.node}:0"]) for argument in interface.arguments]
    for capture in interface.captures:
        name = capture.node.name
        if capture.is_reference:
            read = graph.node.add(name=free_name(_node_name(key, name), taken), op="Identity")
            read.input.append(name)
            read.device = capture.node.device
            read.attr["T"].type = capture.dtype
            read.attr["_class"].list.s.append(f"loc:@{name}".encode())
            name = read.name
            taken.add(name)
        arguments.append(name)
    call = graph.node.add(name=free_name(_CALL, taken), op=_CALL, input=arguments)
    for other in others[:1]:
        call.device = other.device
        for attr in _COPIED:
            if attr in other.attr:
                call.attr[attr].CopyFrom(other.attr[attr])
    call.attr["f"].func.name = function.signature.name
    call.attr["Tin"].list.type.extend(arg.type for arg in function.signature.input_arg)
    call.attr["Tout"].list.type.extend(result.dtype for result in interface.results)
    call.attr["_output_shapes"].list.shape.extend(result.shape for result in interface.results)
    call.attr["_read_only_resource_inputs"].list.i.extend(_only_read(function))
    return {
        f"{result.node}:{result.index}": f"{call.name}:{index}"
        for index, result in enumerate(interface.results)
    }


def _only_read(function: function_pb2.FunctionDef) -> Iterator[int]:
    """Yields the indices of variables that a function only reads, by ops that read them."""
    others = {text for node in function.node_def if node.op not in _READS for text in node.input}
    for index, arg in enumerate(function.signature.input_arg):
        if arg.handle_data and arg.name not in others:
            yield index


def _node_name(key: str, name: str) -> str:
    """Returns the name of a node for an argument of a signature."""
    text = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", f"{key}_{name}")
    return text if re.match("[A-Za-z0-9.]", text) else f".{text}"


def _add_infos(
    infos: MutableMapping[str, meta_graph_pb2.TensorInfo],
    others: Mapping[str, meta_graph_pb2.TensorInfo],
    names: Mapping[str, str],
) -> None:
    """Adds inputs or outputs of a signature, of the tensors that stand for others."""
    for name, other in sorted(others.items()):
        infos[name].CopyFrom(other)
        _rename_tensors(infos[name], names)


def _rename_tensors(info: meta_graph_pb2.TensorInfo, names: Mapping[str, str]) -> None:
    if info.WhichOneof("encoding") == "name":
        info.name = names[_tensor(info.name)]
    elif info.WhichOneof("encoding") == "coo_sparse":
        sparse = info.coo_sparse
        sparse.indices_tensor_name = names[_tensor(sparse.indices_tensor_name)]
        sparse.values_tensor_name = names[_tensor(sparse.values_tensor_name)]
        sparse.dense_shape_tensor_name = names[_tensor(sparse.dense_shape_tensor_name)]
    else:
        for part in info.composite_tensor.components:
            _rename_tensors(part, names)


def _tensor(text: str) -> str:
    """Returns the full name of a tensor."""
    return text if ":" in text else f"{text}:0"
