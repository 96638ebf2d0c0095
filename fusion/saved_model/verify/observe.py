"""Reading tensors inside a model while it runs: in functions, branches and loops as well.

Whatever reads such a tensor reads it through a PyFunc of this process instead, which hands it on
and notes it. That needs no other interface of any function, as returning the tensor would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.passes.graph.signatures import OpSignatures, arg_length
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.runtime.tensorflow.private import op_def_registry
from fusion.saved_model.inputs.signature import Signature, signatures
from fusion.saved_model.model.source import FINGERPRINT_FILE, MODEL_FILE
from fusion.saved_model.verify.columns import packed_dim, widths_of
from fusion.saved_model.verify.job import Observed
from fusion.saved_model.verify.runner import SessionRunner

_PREFIX = "fusion_observed"


class Sight(NamedTuple):
    """A tensor as it was seen once.

    Attributes:
        number: which of the observed tensors.
        value: what it was.
        widths: int64 [n], those of the n columns that an op for many has in it; [0] for any other.
    """

    number: int
    value: NDArray[Any]
    widths: NDArray[np.int64]


def observe(
    model: Path,
    proto: saved_model_pb2.SavedModel,
    signature: Signature,
    feeds: Mapping[str, NDArray[Any]],
    tensors: Sequence[Observed],
    scratch: Path,
) -> list[Sight]:
    """Runs a signature in a Session and returns what was seen, once for each time it was computed.

    Args:
        model: the model's directory.
        proto: its `saved_model.pb`.
        signature: what to run.
        feeds: an array for each input key.
        tensors: what to look at. One without consumers is never computed.
        scratch: a folder for the model as it is run.
    """
    changed = saved_model_pb2.SavedModel()
    changed.CopyFrom(proto)
    meta = next(m for m in changed.meta_graphs if tuple(m.meta_info_def.tags) == signature.tags)
    sights: list[Sight] = []
    # The PyFuncs live as long as the graph that they were made in.
    with tf.Graph().as_default():
        for function in dict.fromkeys(function for function, _ in tensors):
            chosen = {t: i for i, (name, t) in enumerate(tensors) if name == function}
            _insert(meta, function, chosen, sights)
        same = next(s for s in signatures(meta) if s.name == signature.name)
        with contextlib.ExitStack() as stack:
            staged = stack.enter_context(_staged(model, changed, scratch))
            runner = stack.enter_context(contextlib.closing(SessionRunner(staged, signature.tags)))
            runner.run(same, feeds)
    return sights


@contextlib.contextmanager
def _staged(model: Path, proto: saved_model_pb2.SavedModel, scratch: Path) -> Iterator[Path]:
    """Gives a SavedModel of another graph with the variables and assets of `model`."""
    with TemporaryDirectory(prefix="observed-", dir=scratch) as name:
        for entry in model.iterdir():
            if entry.name not in (MODEL_FILE, FINGERPRINT_FILE):
                Path(name, entry.name).symlink_to(entry)
        Path(name, MODEL_FILE).write_bytes(proto.SerializeToString())
        yield Path(name)


def _insert(
    meta: meta_graph_pb2.MetaGraphDef,
    function: str,
    chosen: Mapping[Tensor, int],
    sights: list[Sight],
) -> None:
    """Adds a PyFunc after each chosen tensor of a main graph or a function."""
    view, nodes = _body(meta.graph_def, function)
    moved: dict[Tensor, str] = {}
    added: list[node_def_pb2.NodeDef] = []
    suffix = ":output:0" if function else ":0"
    for tensor, index in chosen.items():
        observers = list(_observer(view, tensor, index, suffix, sights))
        added += observers
        moved[tensor] = observers[-1].name + suffix
    for node in nodes:
        for i, text in enumerate(node.input):
            if not text.startswith("^"):
                node.input[i] = moved.get(view.tensor(text), text)
    nodes.extend(added)
    for body in meta.graph_def.library.function:
        if body.signature.name == function:
            for key, text in body.ret.items():
                body.ret[key] = moved.get(view.tensor(text), text)
    for signature in meta.signature_def.values() if not function else ():
        for info in signature.outputs.values():
            _rename(info, view, moved)


def _body(graph: graph_pb2.GraphDef, function: str) -> tuple[GraphView, Any]:
    if not function:
        return GraphView.of_graph(graph), graph.node
    library = graph.library.function
    body = next(f for f in library if f.signature.name == function)
    return GraphView.of_function(body, OpSignatures(library)), body.node_def


def _rename(info: meta_graph_pb2.TensorInfo, view: GraphView, moved: Mapping[Tensor, str]) -> None:
    """Lets a dense output be read after its PyFunc."""
    if info.WhichOneof("encoding") == "name":
        info.name = moved.get(view.tensor(info.name), info.name)


def _observer(
    view: GraphView, tensor: Tensor, index: int, suffix: str, sights: list[Sight]
) -> Iterator[node_def_pb2.NodeDef]:
    """Yields the nodes that record a tensor; the last one's first output is the tensor."""
    dtype = _dtype(view, tensor)
    shapes: list[str] = []
    for number, matrix in enumerate(widths_of(view, tensor)):
        node = node_def_pb2.NodeDef(name=f"{_PREFIX}_{index}_shape_{number}")
        if (dim := packed_dim(view, tensor, number)) is None:
            node.op = "Shape"
            node.input.append(view.text(matrix))
            node.attr["T"].type = dtype
            node.attr["out_type"].type = tf.int64.as_datatype_enum
        else:
            node.op = "Const"
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([-1, dim], tf.int64))
            node.attr["dtype"].type = tf.int64.as_datatype_enum
        shapes.append(node.name + suffix)
        yield node

    def note(value: NDArray[Any], *sizes: NDArray[np.int64]) -> NDArray[Any]:
        widths = np.array([size[1] for size in sizes], np.int64)
        sights.append(Sight(index, np.array(value), widths))
        return value

    inputs = [
        tf.compat.v1.placeholder(dtype),
        *(tf.compat.v1.placeholder(tf.int64) for _ in shapes),
    ]
    observer = node_def_pb2.NodeDef()
    observer.CopyFrom(tf.numpy_function(note, inputs, tf.dtypes.as_dtype(dtype)).op.node_def)
    observer.name = f"{_PREFIX}_{index}"
    observer.input[:] = [view.text(tensor), *shapes]
    yield observer


def _dtype(view: GraphView, tensor: Tensor) -> int:
    """Returns the dtype of an op's output, a DataType number."""
    node = view.nodes[tensor.node]
    definition = op_def_registry.get(node.op)
    position = 0
    for arg in definition.output_arg if definition is not None else ():
        length = arg_length(arg, node.attr)
        if tensor.index < position + length:
            if arg.type_list_attr:
                types = node.attr[arg.type_list_attr].list.type
                return int(types[tensor.index - position])
            return int(arg.type) or view.type_attr(node.name, arg.type_attr)
        position += length
    raise ValueError(f"node {tensor} has an op that is not known here: {node.op}")
