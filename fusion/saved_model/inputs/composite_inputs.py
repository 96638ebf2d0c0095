"""Which inputs of a signature are the parts of one sparse or ragged tensor.

`tf.saved_model.save` writes plain tensors: a function of a sparse tensor `a` has a signature with
the inputs `a`, `a_1` and `a_2`. The signature's function passes them to the one that was traced:

    serving_default: a, a_1, a_2 -> wrapper -> traced(SparseTensorSpec)

The object graph has the specs of this one if the model's objects have it as an attribute. If they
do not, its arguments are left: the parts of one have the name that was given to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import function_pb2, graph_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.inputs.composites import Composite, composite_arguments
from fusion.saved_model.inputs.constraints import Extent, Key, Role
from fusion.saved_model.inputs.dataflow import input_meaning

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
_NAME = "_user_specified_name"
_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64


@dataclass(frozen=True)
class CompositeInputs:
    """The inputs of a signature that are parts of others.

    Attributes:
        sparse: the (indices, values, dense_shape) inputs of each sparse tensor.
        ragged: the flat values and the row splits of each ragged one.
    """

    sparse: tuple[tuple[str, str, str], ...] = ()
    ragged: tuple[tuple[str, ...], ...] = ()


class CompositeFinder:
    """Finds them in one meta graph."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef) -> None:
        """Takes the meta graph."""
        self._meta = meta
        self._described = {*meta.object_graph_def.concrete_functions}
        self._composites = composite_arguments(meta) if self._described else {}
        self._functions = {one.signature.name: one for one in meta.graph_def.library.function}

    def __call__(self, signature: meta_graph_pb2.SignatureDef) -> CompositeInputs:
        """Returns those of a signature; none of what is not known for sure."""
        infos = {
            key: info
            for key, info in signature.inputs.items()
            if info.WhichOneof("encoding") == "name"
        }
        if not self._described or len(infos) < len(signature.inputs) or len(infos) < 2:
            return CompositeInputs()
        traced = self._traced(signature)
        if traced is None:
            return CompositeInputs()
        function, keys = traced
        if function.signature.name in self._described:
            found = self._composites.get(function.signature.name, ())
        else:
            found = tuple(self._by_names(function, keys, infos))
        sparse, ragged = list[tuple[str, str, str]](), list[tuple[str, ...]]()
        used = set[str]()
        for composite in found:
            parts = [keys[index] for index in composite.arguments if index < len(keys)]
            names = tuple(part for part in parts if part is not None)
            is_whole = len({*names} - used) == len(composite.arguments)
            if not is_whole or not composite.has_any_rows:
                continue
            used |= {*names}
            if composite.is_sparse and len(names) == 3 and _is_sparse(infos, names):
                sparse.append((names[0], names[1], names[2]))
            elif not composite.is_sparse:
                ragged.append(names)
        return CompositeInputs(tuple(sorted(sparse)), tuple(sorted(ragged)))

    def _traced(
        self, signature: meta_graph_pb2.SignatureDef
    ) -> tuple[function_pb2.FunctionDef, list[str | None]] | None:
        """Returns the function that was traced, and the inputs that it gets as arguments."""
        graph = self._meta.graph_def
        (called, *others) = {_node(info.name) for info in signature.outputs.values()} or {""}
        call = next((node for node in graph.node if node.name == called), None)
        if others or call is None or call.op not in _CALLS:
            return None
        wrapper = self._functions.get(call.attr["f"].func.name)
        if wrapper is None or wrapper.signature.name not in self._described:
            return None
        keys = {_node(info.name): key for key, info in signature.inputs.items()}
        arguments = {
            arg.name: keys[_node(text)]
            for arg, text in zip(wrapper.signature.input_arg, call.input, strict=False)
            if _node(text) in keys
        }
        calls = [node for node in wrapper.node_def if node.op in _CALLS]
        # More than a call: something else may be made of the inputs.
        if len(calls) != 1 or len({*arguments.values()}) < len(arguments):
            return None
        if any(
            {*node.input} & arguments.keys()
            for node in wrapper.node_def
            if node.name != calls[0].name
        ):
            return None
        function = self._functions.get(calls[0].attr["f"].func.name)
        passed = [text for text in calls[0].input if not text.startswith("^")]
        return None if function is None else (function, [*map(arguments.get, passed)])

    def _by_names(
        self,
        function: function_pb2.FunctionDef,
        keys: Sequence[str | None],
        infos: Mapping[str, meta_graph_pb2.TensorInfo],
    ) -> Iterator[Composite]:
        """Yields the composite tensors of a function that the object graph does not describe."""
        names = [_given_name(function, index) for index in range(len(keys))]
        index, splits = 0, None
        while index < len(keys):
            run = 1
            while index + run < len(keys) and names[index + run] == names[index] != b"":
                run += 1
            own = [key for key in keys[index : index + run] if key is not None]
            if run > 1 and len(own) == run:
                if _is_sparse(infos, own[:3]) and infos[own[2]].tensor_shape.dim[0].size > 0:
                    yield Composite(True, (index, index + 1, index + 2))
                    index += 3
                    continue
                if splits is None:
                    splits = self._splits(infos)
                count = 1
                while count < run and own[count] in splits:
                    count += 1
                if count > 1 and own[0] not in splits and _is_of(own[:count], splits):
                    yield Composite(False, tuple(range(index, index + count)))
                    index += count
                    continue
            index += 1

    def _splits(self, infos: Mapping[str, meta_graph_pb2.TensorInfo]) -> dict[str, set[str]]:
        """Returns the inputs that the graph uses as row splits, and of which inputs, if it says."""
        tensors = {key: info.name for key, info in infos.items()}
        graph = graph_pb2.GraphDef()
        graph.CopyFrom(self._meta.graph_def)  # reading an attr that a node does not have adds it
        found = input_meaning(graph, tensors, self._composites, known=[*tensors]).constraints
        integers = {key for key, info in infos.items() if info.dtype in (_INT32, _INT64)}
        splits = {key for key in integers if found.roles.get(Key(key)) is Role.SPLITS}
        return {
            key: {one.key.input for one in found.links.get(Extent(Key(key), is_inside=True), ())}
            for key in splits
        }


def _is_of(parts: Sequence[str | None], splits: Mapping[str, set[str]]) -> bool:
    """Whether nothing says that the splits are of other inputs than those next to them."""
    inner = [*parts[2:], parts[0]]
    both = zip(parts[1:], inner, strict=True)
    return all(not splits[own or ""] or of in splits[own or ""] for own, of in both)


def _given_name(function: function_pb2.FunctionDef, index: int) -> bytes:
    """Returns what TensorFlow has named an argument after, b"" if it does not say."""
    attrs = function.arg_attr[index].attr if index in function.arg_attr else {}
    return attrs[_NAME].s if _NAME in attrs else b""


def _is_sparse(infos: Mapping[str, meta_graph_pb2.TensorInfo], keys: Sequence[str]) -> bool:
    """Whether inputs are int64 [N, rank], [N] and int64 [rank]."""
    if len(keys) != 3 or any(infos[key].tensor_shape.unknown_rank for key in keys):
        return False
    indices, values, shape = (tuple(d.size for d in infos[key].tensor_shape.dim) for key in keys)
    if len(indices) != 2 or len(values) != 1 or len(shape) != 1:
        return False
    is_index = infos[keys[0]].dtype == infos[keys[2]].dtype == _INT64
    return is_index and indices[0] < 0 and values[0] < 0 and indices[1] == shape[0]


def _node(text: str) -> str:
    return text.partition(":")[0]
