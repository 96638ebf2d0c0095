"""One MetaGraphDef: its variables, the names that must survive the pass, the list of used ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.ops.registered import DEVICES
from fusion.passes.analysis.static_tables import STATIC_TABLE, Bound
from fusion.passes.analysis.variables import Variable, VariableSearch
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.runtime_ops import recorded_release
from fusion.passes.graph.tensor import Tensor
from fusion.passes.lookup_pass import LookupPass, Pass
from fusion.passes.report.report import FusionResult
from fusion.passes.targets import PASSES, Target
from fusion.runtime.tensorflow.private import constants, op_def_registry, ops
from fusion.runtime.tensorflow.private import meta_graph as tf_meta_graph
from fusion.schema.op_history import Release


def lookup_pass(
    meta: meta_graph_pb2.MetaGraphDef,
    target: Target = Target.FUSED,
    runtime: Release | None = None,
) -> LookupPass:
    """Returns the pass that rewrites the lookups of `meta`.

    Args:
        meta: the meta graph.
        target: what lookups become.
        runtime: the TensorFlow release that stock ops are written for; by default that of `meta`.
    """
    result = PASSES[target](
        preserved_names(meta),
        variables=variable_search(meta).known,
        devices=DEVICES,
        runtime=runtime or release_of(meta),
        fetched=fetched_names(meta),
    )
    if isinstance(result, FuseLookups):
        return replace(result, bound=_bound_inputs(meta))
    return result


def release_of(meta: meta_graph_pb2.MetaGraphDef) -> Release:
    """Returns the TensorFlow release that a meta graph was saved by."""
    return recorded_release(meta.graph_def, meta.meta_info_def.tensorflow_version)


def apply_pass(meta: meta_graph_pb2.MetaGraphDef, graph_pass: Pass) -> FusionResult:
    """Applies `graph_pass` to the graph of `meta` in place.

    A meta graph in which nothing is rewritten is left untouched, to the byte.
    """
    result = graph_pass.apply(meta.graph_def)
    if result.modified:
        meta.graph_def.CopyFrom(result.graph_def)
        update_op_list(meta)
    return result


def preserved_names(meta: meta_graph_pb2.MetaGraphDef) -> frozenset[str]:
    """Returns every node and function name that something outside the graph refers to.

    These are the inputs and outputs of signatures, the nodes in collections (initializers,
    variables, control-flow contexts), those of the saver and the assets, and the constants and
    functions of the object graph.
    """
    return frozenset(name for raw in _references(meta) if (name := node_name(raw)))


def fetched_names(meta: meta_graph_pb2.MetaGraphDef) -> frozenset[str] | None:
    """Returns the nodes that signatures return; None where there are no signatures."""
    keys = meta.signature_def.keys() - {constants.INIT_OP_SIGNATURE_KEY}
    infos = [info for key in keys for info in meta.signature_def[key].outputs.values()]
    names = {node_name(raw) for info in infos for raw in _strings(info)}
    return frozenset(names) & {node.name for node in meta.graph_def.node} or None


def _references(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[str]:
    for signature in meta.signature_def.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            yield from _strings(info)
    for key, collection in meta.collection_def.items():
        yield from _collection_references(key, collection)
    yield from _strings(meta.saver_def)
    for asset in meta.asset_file_def:
        yield from _strings(asset.tensor_info)
    objects = meta.object_graph_def
    yield from objects.concrete_functions
    for node in objects.nodes:
        for part in (node.constant, node.captured_tensor, node.bare_concrete_function):
            yield from _strings(part)


def _collection_references(key: str, collection: meta_graph_pb2.CollectionDef) -> Iterator[str]:
    yield from collection.node_list.value
    proto_type = ops.get_collection_proto_type(key)
    for value in collection.bytes_list.value:
        message = proto_type() if proto_type is not None else None
        try:
            if message is None:
                yield value.decode()
            else:
                message.ParseFromString(value)
                yield from _strings(message)
        except (DecodeError, UnicodeDecodeError):
            # An unknown format: it cannot name nodes in a way that is known here.
            continue
    for packed in collection.any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        if packed.Unpack(asset):
            yield from _strings(asset)


def _strings(message: Message) -> Iterator[str]:
    """Yields every string in `message`, at any depth, map keys included."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            yield from [value] if isinstance(value, str) else value
        elif field.type == field.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                yield from _map_strings(value)
            else:
                for part in [value] if isinstance(value, Message) else value:
                    yield from _strings(part)


def _map_strings(mapping: Iterable[object]) -> Iterator[str]:
    for key in mapping:
        if isinstance(key, str):
            yield key
        value = mapping[key]  # type: ignore[index]
        if isinstance(value, str):
            yield value
        elif isinstance(value, Message):
            yield from _strings(value)


def node_name(reference: str) -> str:
    """Returns the node of a tensor name `node:0`, a control input `^node` or a plain name."""
    return reference.removeprefix("^").partition(":")[0]


def update_op_list(meta: meta_graph_pb2.MetaGraphDef) -> None:
    """Makes `meta_info_def.stripped_op_list` the list of the ops that the graph uses now.

    It is the list TensorFlow makes on saving, except that the definitions of the program that
    saved the model are kept: a loader compares them with its own. A model without a list gets none.
    """
    info = meta.meta_info_def
    if not info.HasField("stripped_op_list"):
        return
    saved = {op.name: op for op in info.stripped_op_list.op}
    used = sorted(tf_meta_graph.ops_used_by_graph_def(meta.graph_def))
    listed = [saved.get(name) or op_def_registry.get(name) for name in used]
    info.stripped_op_list.CopyFrom(op_def_pb2.OpList(op=[op for op in listed if op is not None]))


def used_ops(meta: meta_graph_pb2.MetaGraphDef) -> frozenset[str]:
    """Returns the names of all ops in the graph and in every library function."""
    main = {node.op for node in meta.graph_def.node}
    library = (node.op for f in meta.graph_def.library.function for node in f.node_def)
    return frozenset(main.union(library))


def variable_search(meta: meta_graph_pb2.MetaGraphDef) -> VariableSearch:
    """Returns the search over the meta graph, with what its object graph binds."""
    return VariableSearch(meta.graph_def, _bound(meta))


def bound_arguments(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, int]]:
    """Yields (function, argument, number of the object) of variables that functions have."""
    objects = meta.object_graph_def.nodes
    for function, argument, number in _bindings(meta):
        is_object = 0 <= number < len(objects)
        if is_object and objects[number].WhichOneof("kind") == "variable":
            yield function, argument, number


def _bindings(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, int]]:
    """Yields (function, argument, number of the object) for all that functions are bound to.

    The object graph binds objects to the last arguments.
    """
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    for name, saved in meta.object_graph_def.concrete_functions.items():
        bound = list(saved.bound_inputs)
        if name not in functions or not bound:
            continue
        arguments = functions[name].signature.input_arg[-len(bound) :]
        for argument, number in zip(arguments, bound, strict=False):
            yield name, argument.name, number


def _bound_inputs(meta: meta_graph_pb2.MetaGraphDef) -> dict[tuple[str, str], Bound]:
    """Returns the static hash tables and constants that arguments of functions are bound to."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    objects = meta.object_graph_def.nodes
    found: dict[int, Bound] = {}

    def of(number: int) -> Bound:
        if objects[number].WhichOneof("kind") == "constant":
            return Tensor(objects[number].constant.operation)
        for child in objects[number].children:
            if child.local_name != "_create_resource" or child.node_id >= len(objects):
                continue
            creators = objects[child.node_id].function.concrete_functions
            bodies = [functions[one].node_def for one in creators if one in functions]
            made = [node for body in bodies for node in body if "Table" in node.op]
            if len(made) == 1 and made[0].op == STATIC_TABLE:
                return made[0].attr["shared_name"].s.decode() or None
        return None

    result: dict[tuple[str, str], Bound] = {}
    for function, argument, number in _bindings(meta):
        if number not in found:
            found[number] = of(number) if 0 <= number < len(objects) else None
        result[function, argument] = found[number]
    return result


def _bound(meta: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str, Variable]]:
    for function, argument, number in bound_arguments(meta):
        variable = meta.object_graph_def.nodes[number].variable
        shape = tuple(d.size if d.size >= 0 else None for d in variable.shape.dim)
        yield function, argument, Variable(variable.name, shape)
