"""Requests as ExampleListWithContexts, as TensorFlow Ranking and TensorFlow Serving have them.

The inputs of a graph that takes the Examples of requests, those of candidates, and how many
candidates each request has, are read from one:

    examples_with_context -> DecodeProtoV2 -> sizes    -> candidates_per_request
                                           -> context  -> user_examples
                                           -> examples -> candidate_examples
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from google.protobuf import descriptor_pb2
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.graph.tensor import Tensor
from fusion.passes.requests.writer import Writer

MESSAGE = "tensorflow.serving.ExampleListWithContext"
_PACKAGE, _, _NAME = MESSAGE.rpartition(".")
_EXAMPLES, _CONTEXT = "examples", "context"
_INT32, _INT64, _STRING = types_pb2.DT_INT32, types_pb2.DT_INT64, types_pb2.DT_STRING


@cache
def descriptors() -> bytes:
    """Returns a FileDescriptorSet of the message, whose Examples are not described."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="example_list_with_context.proto", package=_PACKAGE, syntax="proto3"
    )
    file.message_type.add(name="Example")
    message = file.message_type.add(name=_NAME)
    labels = {_EXAMPLES: field.LABEL_REPEATED, _CONTEXT: field.LABEL_OPTIONAL}
    for number, (name, label) in enumerate(labels.items(), 1):
        message.field.add(
            name=name,
            number=number,
            label=label,
            type=field.TYPE_MESSAGE,
            type_name=f".{_PACKAGE}.Example",
        )
    found: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(
        deterministic=True
    )
    return found


def with_example_lists(
    graph: graph_pb2.GraphDef, lists: str, requests: str, candidates: str, counts: str
) -> tuple[graph_pb2.GraphDef, Tensor]:
    """Returns a graph that takes an ExampleListWithContext for each request, and its input.

    A context that is missing is an empty Example. Of several that one message has, the last counts.

    Args:
        graph: a graph whose inputs are the Examples of requests and of candidates, and how many
            candidates each request has.
        lists: the name that the new input gets if it is free, string [requests].
        requests, candidates, counts: the names of the inputs that are read from it.
    """
    write = Writer([node.name for node in graph.node])
    taken = write.add(lists, "Placeholder", (), {"dtype": _STRING})
    write.graph.node[-1].attr["shape"].shape.dim.add(size=-1)
    read = dict(zip((requests, candidates, counts), _read(write, taken), strict=True))
    result = graph_pb2.GraphDef(versions=graph.versions, library=graph.library)
    result.node.extend(write.graph.node)
    for own in graph.node:
        if own.name in read:
            dtype = _INT64 if own.name == counts else _STRING
            node = result.node.add(name=own.name, op="Identity", input=[str(read[own.name])])
            node.attr["T"].type = dtype
        else:
            result.node.add().CopyFrom(own)
    return result, taken


def _read(write: Writer, lists: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Writes what decodes messages; returns contexts, all examples, and how many each has."""
    scope = lists.node
    # The op takes no batch without messages: an empty one is added, which has no examples.
    empty = write.add(f"{scope}/empty", "Const", (), {"dtype": _STRING})
    value = write.graph.node[-1].attr["value"].tensor
    value.dtype = _STRING
    value.tensor_shape.dim.add(size=1)
    value.string_val.append(b"")
    messages = write.concat(f"{scope}/messages", (lists, empty), 0, _STRING)
    decoded = write.add(
        f"{scope}/decoded",
        "DecodeProtoV2",
        (messages,),
        {"output_types": [_STRING, _STRING]},
        {
            "message_type": MESSAGE,
            "descriptor_source": b"bytes://" + descriptors(),
            "message_format": "binary",
            "sanitize": False,
        },
    )
    write.graph.node[-1].attr["field_names"].list.s.extend([_EXAMPLES.encode(), _CONTEXT.encode()])
    sizes, examples, contexts = (Tensor(decoded.node, index) for index in range(3))
    numbers = _column(write, f"{scope}/sizes", sizes, _INT32)
    context = _column(write, f"{scope}/context", contexts, _STRING)
    own = _part(write, f"{scope}/own_sizes", numbers, _INT32)
    counts = write.add(f"{scope}/counts", "Cast", (own,), {"SrcT": _INT32, "DstT": _INT64})
    candidates = _existing(write, f"{scope}/examples", examples, numbers)
    return _part(write, f"{scope}/own_context", context, _STRING), candidates, counts


def _existing(write: Writer, scope: str, examples: Tensor, numbers: Tensor) -> Tensor:
    """Writes the first elements of each row, as many as `numbers` says, one row after the other."""
    shape = write.sizes(f"{scope}/shape", examples, _STRING)
    width = write.part(f"{scope}/width", shape, 1, 2, _INT32)
    scalar = write.add(f"{scope}/width", "Squeeze", (width,), {"T": _INT32})
    zero, one = write.constant(0), write.constant(1)
    columns = write.add(f"{scope}/columns", "Range", (zero, scalar, one), {"Tidx": _INT32})
    ends = write.add(f"{scope}/ends", "ExpandDims", (numbers, one), {"T": _INT32, "Tdim": _INT32})
    exists = write.add(f"{scope}/exists", "Less", (columns, ends), {"T": _INT32})
    places = write.add(f"{scope}/places", "Where", (exists,), {"T": types_pb2.DT_BOOL})
    types = {"Tparams": _STRING, "Tindices": _INT64}
    return write.add(scope, "GatherNd", (examples, places), types)


def _column(write: Writer, name: str, matrix: Tensor, dtype: int) -> Tensor:
    """Writes the first column of a matrix."""
    bounds = (write.constant(one) for one in ([0, 0], [0, 1], [1, 1]))
    masks: Mapping[str, int] = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}
    types = {"T": dtype, "Index": _INT32}
    return write.add(name, "StridedSlice", (matrix, *bounds), types, masks)


def _part(write: Writer, name: str, vector: Tensor, dtype: int) -> Tensor:
    """Writes all of a vector but its last element."""
    return write.part(name, vector, 0, -1, dtype)
