"""The ops by which a model restores its variables: how to read and how to remove them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableSequence
from dataclasses import dataclass

from tensorflow.core.framework import function_pb2, node_def_pb2, tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.runtime.tensorflow.private import tensor_util
from fusion.schema.names import ADD_KEYS

Nodes = MutableSequence[node_def_pb2.NodeDef]

_RESTORE, _ASSIGN = "RestoreV2", "AssignVariableOp"
_SHAPES = "_output_shapes"


@dataclass(frozen=True)
class Restored:
    """A variable that is restored.

    Attributes:
        key: its name in the checkpoint.
        handle: the node of the main graph that gives its handle.
        part: which part of a tensor it is, as RestoreV2 takes it; "" for all.
    """

    key: str
    handle: str
    part: str


def restored_variables(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[Restored]:
    """Yields the variables that the restore op of a model assigns."""
    for body in _bodies(meta):
        view, arguments = body.view, body.arguments
        for restore in view.named(_RESTORE):
            names, parts = _names(view, restore)
            for assign in view.named(_ASSIGN):
                handle, value = (view.resolve(tensor) for tensor in view.inputs(assign)[:2])
                if value.node == restore and value.index < len(names):
                    name = arguments.get(handle.node, handle.node)
                    yield Restored(names[value.index], name, parts[value.index])


def restored_keys(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, str]]:
    """Yields the embedding variables that the restore op of a model gives keys and rows.

    What the names of their tensors in the checkpoint begin with, and the nodes of the main graph
    that give the handles of table and index.
    """
    for body in _bodies(meta):
        view, arguments = body.view, body.arguments
        for add in view.named(ADD_KEYS):
            table, index, *_, values = (view.resolve(tensor) for tensor in view.inputs(add)[:6])
            if view.op(values.node) == _RESTORE:
                names, _ = _names(view, values.node)
                prefix, _, name = names[values.index].rpartition("/") if names else ("", "", "")
                if name == "values":
                    handles = [arguments.get(handle.node, handle.node) for handle in (table, index)]
                    yield prefix, handles[0], handles[1]


def leave_out(meta: meta_graph_pb2.MetaGraphDef, keys: Collection[str]) -> None:
    """Removes these checkpoint keys from the restore op of a model."""
    for body in _bodies(meta):
        for restore in body.view.named(_RESTORE):
            names, _ = _names(body.view, restore)
            dropped = [index for index, name in enumerate(names) if name in keys]
            if dropped:
                _drop(body, restore, dropped)


@dataclass(frozen=True)
class _Body:
    """A graph with restore ops.

    Attributes:
        nodes: of it.
        view: a view of it.
        arguments: the nodes of the main graph that its arguments are.
        definition: of the function; None for the main graph.
        separator: what is between a node and the number of an output of RestoreV2.
    """

    nodes: Nodes
    view: GraphView
    arguments: dict[str, str]
    separator: str
    definition: function_pb2.FunctionDef | None = None


def _bodies(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[_Body]:
    """Yields the main graph, and the function that its restore op calls."""
    graph = meta.graph_def
    signatures = OpSignatures(graph.library.function)
    view = GraphView(graph.node, signatures)
    yield _Body(graph.node, view, {}, ":")
    call = view.nodes.get(meta.saver_def.restore_op_name.removeprefix("^").partition(":")[0])
    if call is None or "f" not in call.attr:
        return
    for function in graph.library.function:
        if function.signature.name == call.attr["f"].func.name:
            inputs = (view.resolve(tensor).node for tensor in view.inputs(call.name))
            names = (argument.name for argument in function.signature.input_arg)
            arguments = dict(zip(names, inputs, strict=True))
            of_function = GraphView.of_function(function, signatures)
            yield _Body(function.node_def, of_function, arguments, ":tensors:", function)


def _names(view: GraphView, restore: str) -> tuple[list[str], list[str]]:
    """The names that a RestoreV2 restores, and which parts; none where that is computed."""
    values = [_strings(view, tensor) for tensor in view.inputs(restore)[1:3]]
    return (values[0], values[1]) if len(values[0]) == len(values[1]) else ([], [])


def _strings(view: GraphView, tensor: Tensor) -> list[str]:
    node = view.nodes.get(view.resolve(tensor).node)
    if node is None or node.op != "Const":
        return []
    array = tensor_util.MakeNdarray(node.attr["value"].tensor).reshape(-1)
    return [value.decode(errors="surrogateescape") for value in array]


def _drop(body: _Body, restore: str, dropped: list[int]) -> None:
    """Drops some outputs of a RestoreV2, and the nodes that read nothing else."""
    nodes = {node.name: node for node in body.nodes}
    node = nodes[restore]
    for place in (1, 2):
        const = nodes[body.view.resolve(body.view.inputs(restore)[place]).node]
        _drop_strings(const.attr["value"].tensor, dropped)
        const.attr.pop(_SHAPES, None)
    node.attr.pop(_SHAPES, None)
    dtypes = node.attr["dtypes"].list.type
    types = [dtype for index, dtype in enumerate(dtypes) if index not in dropped]
    del dtypes[:]
    dtypes.extend(types)
    gone = set() if types else {restore}
    remaining = (index for index in range(len(types) + len(dropped)) if index not in dropped)
    places = {old: new for new, old in enumerate(remaining)}
    wanted = [(restore, index) for index in dropped]
    while wanted:
        name, index = wanted.pop()
        for use in body.view.uses(name):
            if use.position >= 0 and use.tensor == Tensor(name, index) and use.node not in gone:
                gone.add(use.node)
                wanted += [(use.node, 0)]
    awaited = {f"^{name}" for name in gone}
    for other in body.nodes:
        inputs = [text for text in other.input if text not in awaited]
        renumbered = [_renumbered(text, restore, body.separator, places) for text in inputs]
        other.input[:] = renumbered
    for index in reversed(range(len(body.nodes))):
        if body.nodes[index].name in gone:
            del body.nodes[index]
    if body.definition is not None:
        _forget_awaited(body.definition, gone)


def _forget_awaited(definition: function_pb2.FunctionDef, gone: Collection[str]) -> None:
    """Drops control outputs of a function that are gone."""
    outputs = [name for name, node in definition.control_ret.items() if node in gone]
    for name in outputs:
        del definition.control_ret[name]
        definition.signature.control_output.remove(name)


def _drop_strings(tensor: tensor_pb2.TensorProto, dropped: list[int]) -> None:
    array = tensor_util.MakeNdarray(tensor).reshape(-1)
    strings = [value for index, value in enumerate(array) if index not in dropped]
    tensor.CopyFrom(tensor_util.make_tensor_proto(strings, tensor.dtype, [len(strings)]))


def _renumbered(text: str, restore: str, separator: str, places: dict[int, int]) -> str:
    """An input with the new index of an output of a RestoreV2."""
    name, has_index, index = text.partition(separator)
    if name != restore:
        return text
    number = places.get(int(index) if has_index else 0)
    return text if number is None else f"{restore}{separator}{number}"
