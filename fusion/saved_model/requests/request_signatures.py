"""Adds the signatures of a model in which a request has one row, and each candidate one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.rows.facts import Fact, Kind, Side, rows
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.example_lists import with_example_lists
from fusion.passes.requests.parsers import CANDIDATES, REQUEST, SplitParsers, split_parsers
from fusion.passes.requests.split import SplitGraph, split_by_request
from fusion.saved_model.errors import ModelError
from fusion.saved_model.flat import flat_graph, reachable, tensor_names
from fusion.saved_model.inputs.signature import Signature, TensorSpec, signatures
from fusion.saved_model.requests.signatures import ComputedSignature, add_signature

COUNTS = "candidates_per_request"
"""The input that says how many candidates each request has."""

EXAMPLES = "user_examples", "candidate_examples"
"""The inputs in place of one of Examples: those of requests, and those of candidates."""

EXAMPLE_LISTS = "examples_with_context"
"""The input in place of both: an ExampleListWithContext for each request."""

_ONE, _SEVERAL, _LISTS = "request", "requests", "elwc"
_SPARSE = (Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE)


@dataclass(frozen=True)
class RequestInputs:
    """What of a signature describes the request.

    Attributes:
        names: its inputs that do, or features of its Examples; the others describe candidates.
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
        names: the inputs, or the features of Examples, that describe the request.
        meetings: the nodes whose rows are repeated for candidates.
        examples: the input of Examples of the original; "": it has none.
        inputs: those of the Examples of requests and of candidates in its place.
        lists: the input of ExampleListWithContexts in place of these two and of `counts`; "": it
            has none.
    """

    name: str
    of: str
    counts: str | None
    names: tuple[str, ...]
    meetings: tuple[str, ...]
    examples: str = ""
    inputs: tuple[str, ...] = ()
    lists: str = ""


def add_request_signatures(
    meta: meta_graph_pb2.MetaGraphDef, inputs: RequestInputs, model: object
) -> list[RequestSignature]:
    """Adds `NAME_request`, which takes one request, and `NAME_requests`, which takes several.

    Where the original takes Examples, `NAME_elwc` takes ExampleListWithContexts.

    Args:
        meta: the model; it is changed in place.
        inputs: what describes the request.
        model: where it is from, for messages.

    Raises:
        ModelError: there is no such signature or input, or rows of the model depend on each other.
    """
    signature = _signature(meta, inputs.signature, model)
    declared = meta.signature_def[signature.name]
    outputs = {key: tensor_of(info.name) for key, info in declared.outputs.items()}
    graph, infos = graph_of(meta, signature), dict(declared.inputs)
    is_named = not {*signature.input_names}.isdisjoint(inputs.names)
    examples = None if is_named else examples_input(signature)
    if examples is None:
        _check_names(signature, inputs.names, model)
        facts = _facts(signature, inputs.names, model)
    else:
        split_up = _split_examples(graph, signature, inputs.names, model)
        graph = split_up.graph
        sides = zip(EXAMPLES, split_up.inputs, (Side.REQUEST, Side.CANDIDATE), strict=True)
        facts, infos = {}, {}
        for key, tensor, side in sides:
            facts[tensor] = rows(side)
            infos[key] = meta_graph_pb2.TensorInfo()
            infos[key].CopyFrom(declared.inputs[examples])
            infos[key].name = f"{tensor.node}:0"
    one_row = {EXAMPLES[0]} if examples is not None else _dense(signature, inputs.names)
    if inputs.exact:
        # Sums and products depend on static sizes, and the check of the rows would be left out.
        one_row = set()
    added = list[RequestSignature]()

    def add(
        suffix: str,
        counts: str | None,
        split: SplitGraph,
        own: Mapping[str, meta_graph_pb2.TensorInfo],
        lists: str = "",
    ) -> None:
        key, results = f"{signature.name}_{suffix}", _results(declared, split, outputs)
        add_signature(meta, key, _computed(graph, split, own, results))
        added.append(
            RequestSignature(
                key,
                signature.name,
                counts,
                inputs.names,
                tuple(split.meetings),
                examples or "",
                EXAMPLES if examples and not lists else (),
                lists,
            )
        )

    for counts in (None, COUNTS):
        split = split_by_request(graph, facts, [*outputs.values()], counts, exact=inputs.exact)
        if isinstance(split, NoMatch):
            raise ModelError(
                f"{model}: signature {signature.name!r} cannot take a request once: {split.reason} "
                f"(node {split.node!r})"
            )
        if counts is None:
            add(_ONE, None, split, _of_one(infos, one_row))
            continue
        add(_SEVERAL, counts, split, _with_counts(infos, counts))
        if examples is not None:
            nodes = [tensor_of(infos[key].name).node for key in EXAMPLES]
            new, taken = with_example_lists(split.graph, EXAMPLE_LISTS, nodes[0], nodes[1], counts)
            only = {EXAMPLE_LISTS: _vector(taken.node, types_pb2.DT_STRING)}
            add(_LISTS, None, replace(split, graph=new), only, EXAMPLE_LISTS)
    return added


def graph_of(meta: meta_graph_pb2.MetaGraphDef, signature: Signature) -> graph_pb2.GraphDef:
    """Returns what a signature computes, without functions that are called."""
    nodes = [tensor_of(spec.tensor).node for spec in (*signature.outputs, *signature.inputs)]
    return reachable(flat_graph(meta), nodes)


def examples_input(signature: Signature) -> str | None:
    """Returns the only input of a signature, if it is one of texts, which may be Examples."""
    specs = signature.inputs
    is_text = len(specs) == 1 and specs[0].dtype == types_pb2.DT_STRING
    return specs[0].key if is_text else None


def _split_examples(
    graph: graph_pb2.GraphDef,
    signature: Signature,
    names: Iterable[str],
    model: object,
) -> SplitParsers:
    """Parses Examples of requests and Examples of candidates."""
    what = f"{model}: signature {signature.name!r}"
    tensor = tensor_of(signature.inputs[0].tensor)
    new = dict(zip((REQUEST, CANDIDATES), EXAMPLES, strict=True))
    split = split_parsers(graph, tensor, {*names}, new)
    if isinstance(split, NoMatch):
        raise ModelError(f"{what} has no input {', '.join(names)}, and {split.reason}")
    for name in names:
        if name not in split.features:
            have = ", ".join(sorted(split.features)) or "none"
            raise ModelError(f"{what} has no input {name!r}, and asks its Examples for {have}")
    if split.features <= {*names}:
        raise ModelError(f"{what} asks Examples for no feature of candidates")
    return split


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
    known = signature.input_names
    for name in names:
        if name not in known:
            of = signature.input_of(name)
            what = f", which is a part of {of!r}" if of in known and of != name else ""
            raise ModelError(
                f"{model}: signature {signature.name!r} has no input {name!r}{what}; "
                f"it has {', '.join(known)}"
            )
    if {*known} <= {*names}:
        raise ModelError(f"{model}: signature {signature.name!r} has no input of candidates")


def _dense(signature: Signature, names: Iterable[str]) -> set[str]:
    """Returns those of some inputs that are no parts of sparse or ragged ones."""
    parts = {key for keys in (*signature.sparse, *signature.ragged) for key in keys}
    return {*names} - parts


def _facts(signature: Signature, names: Iterable[str], model: object) -> dict[Tensor, Fact]:
    """Returns the rows of the inputs of a signature."""
    names = set(names)

    def side(spec_key: str) -> Side:
        return Side.REQUEST if signature.input_of(spec_key) in names else Side.CANDIDATE

    facts: dict[Tensor, Fact] = {}
    parts = set[str]()
    specs = {spec.key: spec for spec in signature.inputs}
    for triple in signature.sparse:
        parts.update(triple)
        for key, kind in zip(triple, _SPARSE, strict=True):
            facts[tensor_of(specs[key].tensor)] = Fact(kind, side(key), source=triple[0])
    for ragged in signature.ragged:
        parts.update(ragged)
        if len(ragged) != 2:
            name = signature.input_of(ragged[0])
            raise ModelError(f"{model}: input {name!r} is ragged in several dimensions")
        rows_and_one = (specs[ragged[1]].shape or (-1,))[0]
        if rows_and_one >= 0:
            raise _fixed_rows(signature.input_of(ragged[0]), rows_and_one - 1, signature, model)
        for key, kind in zip(ragged, (Kind.ENTRIES, Kind.SPLITS), strict=True):
            facts[tensor_of(specs[key].tensor)] = Fact(kind, side(key), source=ragged[0])
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
        raise _fixed_rows(spec.key, spec.shape[0], signature, model)
    return {tensor_of(spec.tensor): rows(side)}


def _fixed_rows(name: str, count: int, signature: Signature, model: object) -> ModelError:
    what = f"{model}: input {name!r} of signature {signature.name!r}"
    return ModelError(f"{what} has a fixed number of rows, {count}")


def tensor_of(name: str) -> Tensor:
    """Returns the tensor of a name such as `node:0`."""
    node, _, index = name.partition(":")
    return Tensor(node, int(index or 0))


def _of_one(
    infos: Mapping[str, meta_graph_pb2.TensorInfo], names: Iterable[str]
) -> dict[str, meta_graph_pb2.TensorInfo]:
    """Returns inputs of which some have one row."""
    result = {key: _copy(info) for key, info in infos.items()}
    for key in names:
        info = result.get(key)
        if info is not None and info.WhichOneof("encoding") == "name" and info.tensor_shape.dim:
            info.tensor_shape.dim[0].size = 1
    return result


def _with_counts(
    infos: Mapping[str, meta_graph_pb2.TensorInfo], counts: str
) -> dict[str, meta_graph_pb2.TensorInfo]:
    """Returns inputs and that of the numbers of candidates."""
    result = {key: _copy(info) for key, info in infos.items()}
    result[counts] = _vector(counts, types_pb2.DT_INT64)
    return result


def _vector(name: str, dtype: int) -> meta_graph_pb2.TensorInfo:
    info = meta_graph_pb2.TensorInfo(name=f"{name}:0", dtype=dtype)
    info.tensor_shape.dim.add(size=-1)
    return info


def _results(
    declared: meta_graph_pb2.SignatureDef, split: SplitGraph, outputs: Mapping[str, Tensor]
) -> dict[str, meta_graph_pb2.TensorInfo]:
    results = {key: _copy(declared.outputs[key]) for key in outputs}
    for key, tensor in outputs.items():
        new = split.outputs[tensor]
        results[key].name = f"{new.node}:{new.index}"
    return results


def _copy(info: meta_graph_pb2.TensorInfo) -> meta_graph_pb2.TensorInfo:
    copy = meta_graph_pb2.TensorInfo()
    copy.CopyFrom(info)
    return copy


def _computed(
    original: graph_pb2.GraphDef,
    split: SplitGraph,
    inputs: Mapping[str, meta_graph_pb2.TensorInfo],
    outputs: Mapping[str, meta_graph_pb2.TensorInfo],
) -> ComputedSignature:
    wanted = {tensor.node for tensor in split.outputs.values()}
    wanted |= {tensor_of(name).node for info in inputs.values() for name in tensor_names(info)}
    known = {node.name for node in split.graph.node}
    # What no output depends on is an input nevertheless.
    split.graph.node.extend(node for node in original.node if node.name in wanted - known)
    return ComputedSignature(reachable(split.graph, sorted(wanted)), inputs, outputs)
