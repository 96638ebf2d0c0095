"""Ops that parse the same Examples become one, which goes over their bytes once.

What they are asked for has to be needed together: an Example may lack what another result needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from fusion.passes.analysis.equal_tensors import are_equal
from fusion.passes.analysis.results import results_of
from fusion.passes.emit.parsing import (
    Asked,
    asked_features,
    emit_stock_parser,
    outputs_by_key,
)
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.parsing import (
    PARSE_V2,
    ParseSpec,
    match_parsers,
)
from fusion.schema.attributes import MAX_FEATURES


class _Parser(NamedTuple):
    """A parser of Examples.

    Attributes:
        node: the node.
        names: of the Examples.
        asked: the features, in the order of the op's.
        results: what of the graph depends on it.
    """

    node: Node
    names: Value
    asked: list[Asked]
    results: frozenset[str]

    @property
    def device(self) -> str:
        """Where it is placed."""
        return self.node.view.nodes[self.node.name].device


class _Group(NamedTuple):
    """Parsers that become one, and what they are asked for, by key."""

    parsers: list[_Parser]
    features: dict[bytes, Asked]

    def takes(self, parser: _Parser) -> bool:
        """Whether the others parse the same, for the same, and ask for no feature otherwise."""
        first = self.parsers[0]
        if (first.device, first.results) != (parser.device, parser.results):
            return False
        known = [self.features.get(one.feature.key, one) for one in parser.asked]
        news = sum(one is other for one, other in zip(parser.asked, known, strict=True))
        return (
            len(self.features) + news <= MAX_FEATURES
            and are_equal(first.node.input(0), parser.node.input(0))
            and are_equal(first.names, parser.names)
            and all(one.agrees(other) for one, other in zip(parser.asked, known, strict=True))
        )

    def add(self, parser: _Parser) -> None:
        """Adds one of these."""
        self.parsers.append(parser)
        for one in parser.asked:
            self.features.setdefault(one.feature.key, one)


def merge_parsers(view: GraphView) -> GraphEdit | None:
    """Returns a graph in which parsers of the same Examples are one; None if there are none."""
    names = [*view.named(PARSE_V2)]
    if len(names) <= 1:
        return None
    groups = list[_Group]()
    for parser in _parsers(view, names):
        group = next((group for group in groups if group.takes(parser)), None)
        if group is None:
            groups.append(group := _Group([], {}))
        group.add(parser)
    edit = GraphEdit(view)
    for group in groups:
        if len(group.parsers) > 1:
            _merge(edit, group)
    return edit if edit.added else None


def _parsers(view: GraphView, names: Collection[str]) -> Iterator[_Parser]:
    """Yields the parsers that may be merged."""
    for node, spec in match_parsers(view):
        if node.op != PARSE_V2 or not isinstance(spec, ParseSpec) or spec.names is None:
            continue
        if node.is_preserved or node.controls or view.control_uses(node.name):
            continue
        asked = [*asked_features(node, spec)]
        defaults = [one.default.node for one in asked if one.default is not None]
        if reached(defaults, view.before).keys().isdisjoint(names):
            yield _Parser(node, spec.names, asked, results_of(view, node.name))


def _merge(edit: GraphEdit, group: _Group) -> None:
    """Puts one parser in the place of the first."""
    first = group.parsers[0].node
    features = sorted(group.features.values(), key=lambda one: one.kind)
    emit_stock_parser(edit, first, first.name, first.input(0).tensor, features)
    new = outputs_by_key(features)
    for parser in group.parsers:
        for key, numbers in outputs_by_key(parser.asked).items():
            for number, to in zip(numbers, new[key], strict=True):
                edit.replace(Tensor(parser.node.name, number), Tensor(first.name, to))
    edit.remove([parser.node.name for parser in group.parsers], first.name)
