"""A signature in the object graph of a model, of which `tf.saved_model.load` makes objects."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.protobuf import saved_object_graph_pb2, struct_pb2

from fusion.saved_model.requests.functions import Argument, Interface, Result, python_name

_SIGNATURES = "signatures"


def add_object(
    objects: saved_object_graph_pb2.SavedObjectGraph, key: str, function: str, interface: Interface
) -> None:
    """Adds a signature that a function computes.

    Args:
        objects: the object graph.
        key: of the signature.
        function: the name of the function.
        interface: its inputs and outputs; what it captures are objects.
    """
    arguments, captures = interface.arguments, interface.captures
    concrete = objects.concrete_functions[function]
    concrete.bound_inputs.extend(capture.object for capture in captures)
    structure = concrete.canonicalized_input_signature.tuple_value.values
    structure.add().tuple_value.SetInParent()
    keywords = structure.add().dict_value
    keywords.SetInParent()
    for argument in arguments:
        _set_spec(keywords.fields[python_name(argument.name)], argument)
    concrete.output_signature.dict_value.SetInParent()
    for result in interface.results:
        _set_spec(concrete.output_signature.dict_value.fields[result.name], result)

    number = len(objects.nodes)
    node = objects.nodes.add()
    bare = node.bare_concrete_function
    bare.concrete_function_name = function
    bare.argument_keywords.extend(argument.name for argument in arguments)
    # Several are passed by name: a SignatureDef has no order.
    bare.allowed_positional_arguments = int(len(arguments) == 1)
    _set_parameters(bare.function_spec, [python_name(argument.name) for argument in arguments])
    for index, capture in enumerate(captures):
        if not capture.is_handle:  # a constant, which is loaded before the function
            for edges in (node.children, node.dependencies):
                edges.add(node_id=capture.object, local_name=f"capture_{index}")
    _signature_map(objects).children.add(node_id=number, local_name=key)


def _set_spec(value: struct_pb2.StructuredValue, tensor: Argument | Result) -> None:
    value.tensor_spec_value.CopyFrom(
        struct_pb2.TensorSpecProto(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype)
    )


def _set_parameters(spec: saved_object_graph_pb2.FunctionSpec, keywords: Sequence[str]) -> None:
    """Makes a function one of keyword-only parameters, as those of all signatures are."""
    spec.input_signature.none_value.SetInParent()
    described = spec.fullargspec.named_tuple_value
    described.name = "FullArgSpec"
    for name in ("args", "varargs", "varkw", "defaults", "kwonlyargs", "kwonlydefaults"):
        value = described.values.add(key=name).value
        if name in ("args", "kwonlyargs"):
            value.list_value.SetInParent()
        else:
            value.none_value.SetInParent()
        if name == "kwonlyargs":
            for keyword in keywords:
                value.list_value.values.add(string_value=keyword)
    described.values.add(key="annotations").value.dict_value.SetInParent()


def _signature_map(
    objects: saved_object_graph_pb2.SavedObjectGraph,
) -> saved_object_graph_pb2.SavedObject:
    """Returns the object of all signatures, which the root has."""
    for child in objects.nodes[0].children:
        if child.local_name == _SIGNATURES:
            return objects.nodes[child.node_id]
    objects.nodes[0].children.add(node_id=len(objects.nodes), local_name=_SIGNATURES)
    result = objects.nodes.add()
    result.user_object.identifier = "signature_map"
    result.user_object.version.producer = result.user_object.version.min_consumer = 1
    return result
