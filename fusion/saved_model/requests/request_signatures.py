"""Adds the signatures of a model in which a request has one row, and each candidate one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.rows.facts import Fact, Kind, Side, rows
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.split import SplitGraph, split_by_request
from fusion.saved_model.errors import ModelError
from fusion.saved_model.flat import flat_graph, reachable, tensor_names
from fusion.saved_model.inputs.signature import Signature, TensorSpec, signatures
from fusion.saved_model.requests.signatures import ComputedSignature, add_signature

COUNTS = "candidates_per_request"
"""The input that says how many candidates each request has."""

_ONE, _SEVERAL = "request", "requests"
_SPARSE = (Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE)


@dataclass(frozen=True)
class RequestInputs:
    """What of a signature describes the request.

    Attributes:
        names: its inputs that do; the others describe candidates.
        signature: its key; None: the only one, or `serving_default`.
        exact: whether the new signatures have to give the original's bits.
    """

    names: tuple[str, ...]
    signature: str | None = None
    exact: bool = False


@dataclass(frozen=True)
class RequestSignature:
    """A signature that was added.

    Attributes:
        name: its key.
        of: the key of the original.
        counts: the name of the input that says how many candidates each request has; None: it
            takes one request.
        names: the inputs that describe the request.
        meetings: the nodes whose rows are repeated for candidates.
    """

    name: str
    of: str
    counts: str | None
    names: tuple[str, ...]
    meetings: tuple[str, ...]


def add_request_signatures(
    meta: meta_graph_pb2.MetaGraphDef, inputs: RequestInputs, model: object
) -> list[RequestSignature]:
    """Adds `NAME_request`, which takes one request, and `NAME_requests`, which takes several.

    Args:
        meta: the model; it is changed in place.
        inputs: what describes the request.
        model: where it is from, for messages.

    Raises:
        ModelError: there is no such signature or input, or rows of the model depend on each other.
    """
    signature = _signature(meta, inputs.signature, model)
    _check_names(signature, inputs.names, model)
    flat = flat_graph(meta)
    declared = meta.signature_def[signature.name]
    outputs = {key: _tensor(info.name) for key, info in declared.outputs.items()}
    nodes = [tensor.node for tensor in outputs.values()]
    graph = reachable(flat, [*nodes, *(_tensor(spec.tensor).node for spec in signature.inputs)])
    facts = _facts(signature, inputs.names, model)
    added = []
    for suffix, counts in ((_ONE, None), (_SEVERAL, COUNTS)):
        key = f"{signature.name}_{suffix}"
        split = split_by_request(graph, facts, [*outputs.values()], counts, exact=inputs.exact)
        if isinstance(split, NoMatch):
            raise ModelError(
                f"{model}: signature {signature.name!r} cannot take a request once: {split.reason} "
                f"(node {split.node!r})"
            )
        computed = _computed(declared, graph, split, outputs, inputs.names, counts)
        add_signature(meta, key, computed)
        added.append(
            RequestSignature(key, signature.name, counts, inputs.names, tuple(split.meetings))
        )
    return added


def _signature(meta: meta_graph_pb2.MetaGraphDef, name: str | None, model: object) -> Signature:
    known = {one.name: one for one in signatures(meta)}
    if name is None and len(known) == 1:
        (name,) = known
    name = "serving_default" if name is None else name
    if name not in known:
        have = ", ".join(map(repr, known)) or "none"
        raise ModelError(f"{model}: it has no signature {name!r}; it has {have}")
    return known[name]


def _check_names(signature: Signature, names: Iterable[str], model: object) -> None:
    known = {spec.key.partition("/")[0] for spec in signature.inputs}
    for name in names:
        if name not in known:
            have = ", ".join(sorted(known))
            raise ModelError(
                f"{model}: signature {signature.name!r} has no input {name!r}; it has {have}"
            )
    if known <= set(names):
        raise ModelError(f"{model}: signature {signature.name!r} has no input of candidates")


def _facts(signature: Signature, names: Iterable[str], model: object) -> dict[Tensor, Fact]:
    """Returns the rows of the inputs of a signature."""
    names = set(names)

    def side(spec_key: str) -> Side:
        return Side.REQUEST if spec_key.partition("/")[0] in names else Side.CANDIDATE

    facts: dict[Tensor, Fact] = {}
    parts = set[str]()
    specs = {spec.key: spec for spec in signature.inputs}
    for triple in signature.sparse:
        parts.update(triple)
        for key, kind in zip(triple, _SPARSE, strict=True):
            facts[_tensor(specs[key].tensor)] = Fact(kind, side(key), source=triple[0])
    for ragged in signature.ragged:
        parts.update(ragged)
        if len(ragged) != 2:
            raise ModelError(f"{model}: input {ragged[0]!r} is ragged in several dimensions")
        for key, kind in zip(ragged, (Kind.ENTRIES, Kind.SPLITS), strict=True):
            facts[_tensor(specs[key].tensor)] = Fact(kind, side(key), source=ragged[0])
    for spec in signature.inputs:
        if spec.key not in parts:
            facts |= _of_dense(spec, side(spec.key), signature, model)
    return facts


def _of_dense(
    spec: TensorSpec, side: Side, signature: Signature, model: object
) -> dict[Tensor, Fact]:
    what = f"{model}: input {spec.key!r} of signature {signature.name!r}"
    if spec.shape is None:
        raise ModelError(f"{what} has an unknown rank")
    if not spec.shape:
        return {}
    if spec.shape[0] >= 0:
        raise ModelError(f"{what} has a fixed number of rows, {spec.shape[0]}")
    return {_tensor(spec.tensor): rows(side)}


def _tensor(name: str) -> Tensor:
    node, _, index = name.partition(":")
    return Tensor(node, int(index or 0))


def _computed(
    declared: meta_graph_pb2.SignatureDef,
    original: graph_pb2.GraphDef,
    split: SplitGraph,
    outputs: Mapping[str, Tensor],
    names: Iterable[str],
    counts: str | None,
) -> ComputedSignature:
    inputs = {}
    for key, info in declared.inputs.items():
        inputs[key] = meta_graph_pb2.TensorInfo()
        inputs[key].CopyFrom(info)
        is_dense = info.WhichOneof("encoding") == "name" and bool(info.tensor_shape.dim)
        if counts is None and key in names and is_dense:
            inputs[key].tensor_shape.dim[0].size = 1
    if counts is not None:
        inputs[counts] = meta_graph_pb2.TensorInfo(name=f"{counts}:0", dtype=types_pb2.DT_INT64)
        inputs[counts].tensor_shape.dim.add(size=-1)
    results = {}
    for key, tensor in outputs.items():
        new = split.outputs[tensor]
        results[key] = meta_graph_pb2.TensorInfo()
        results[key].CopyFrom(declared.outputs[key])
        results[key].name = f"{new.node}:{new.index}"
    wanted = {tensor.node for tensor in split.outputs.values()}
    wanted |= {_tensor(name).node for info in inputs.values() for name in tensor_names(info)}
    known = {node.name for node in split.graph.node}
    # What no output depends on is an input nevertheless.
    unread = [n for n in original.node if n.name in wanted - known]
    split.graph.node.extend(unread)
    graph = reachable(split.graph, sorted(wanted))
    return ComputedSignature(graph, inputs, results, declared.method_name)
