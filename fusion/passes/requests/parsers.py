"""A parser of tf.Examples becomes one of requests and one of candidates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2

from fusion.passes.emit.parsing import asked_features, emit_stock_parser, outputs_by_key
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.tensor import ALIAS_OPS, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.parsing import PARSE_V1, PARSE_V2, ParseSpec, match_parsers

REQUEST, CANDIDATES = "request", "candidate"

_OF_ROWS = frozenset({PARSE_V1, PARSE_V2})
"""Parsers that take a vector of Examples."""


@dataclass(frozen=True)
class SplitParsers:
    """A graph whose Examples are apart.

    Attributes:
        graph: it.
        inputs: its two inputs of Examples, in the order of `REQUEST` and `CANDIDATES`.
        features: what Examples are asked for.
    """

    graph: graph_pb2.GraphDef
    inputs: tuple[Tensor, Tensor]
    features: frozenset[str]


def features_of(view: GraphView, examples: Tensor) -> frozenset[str] | NoMatch:
    """Returns the features that parsers of an input ask for, or why they are not known."""
    found = frozenset[str]()
    waiting = [examples.node]
    for name in waiting:
        for use in view.uses(name):
            if view.op(use.node) in ALIAS_OPS:
                waiting.append(use.node)
            elif view.op(use.node) not in _OF_ROWS or use.position:
                op = view.op(use.node)
                return NoMatch(
                    f"the Examples are read by another op than ParseExample, {op}", use.node
                )
    for node, spec in match_parsers(view):
        if view.resolve(node.input(0).tensor) == examples:
            if not isinstance(spec, ParseSpec):
                return spec if isinstance(spec, NoMatch) else NoMatch("of sequences", node.name)
            found |= {one.key.decode(errors="surrogateescape") for one in spec.features}
    return found


def split_parsers(
    graph: graph_pb2.GraphDef,
    examples: Tensor,
    of_request: Collection[str],
    names: Mapping[str, str],
) -> SplitParsers | NoMatch:
    """Returns a graph that parses the features of requests from Examples of their own.

    Args:
        graph: a graph without functions that are called.
        examples: an input of serialized Examples, which parsers alone read.
        of_request: the features of requests.
        names: of the new inputs, for `REQUEST` and `CANDIDATES`.
    """
    view = GraphView.of_graph(graph)
    features = features_of(view, examples)
    if isinstance(features, NoMatch):
        return features
    edit = GraphEdit(view)
    inputs = tuple(Tensor(edit.unique_name(names[kind])) for kind in (REQUEST, CANDIDATES))
    for tensor in inputs:
        node = graph_pb2.GraphDef().node.add()
        node.CopyFrom(view.nodes[examples.node])
        node.name = tensor.node
        node.attr.pop("_output_shapes", None)
        edit.add(node, at=examples.node)
    for parser, spec in [*match_parsers(view)]:
        if view.resolve(parser.input(0).tensor) != examples or not isinstance(spec, ParseSpec):
            continue
        asked = sorted(asked_features(parser, spec), key=lambda one: one.kind)
        old, first = outputs_by_key(asked), ""
        for tensor, is_own in zip(inputs, (True, False), strict=True):
            some = [
                one
                for one in asked
                if (one.feature.key.decode(errors="surrogateescape") in of_request) is is_own
            ]
            if not some:
                continue
            name = edit.unique_name(f"{parser.name}/{tensor.node}")
            emit_stock_parser(edit, parser, name, tensor, some)
            first = first or name
            for key, numbers in outputs_by_key(some).items():
                for before, number in zip(old[key], numbers, strict=True):
                    edit.replace(Tensor(parser.name, before), Tensor(name, number))
        edit.remove([parser.name], first)
    edit.remove([examples.node], inputs[0].node)
    return SplitParsers(apply_edits(graph, {"": edit}), (inputs[0], inputs[1]), features)
