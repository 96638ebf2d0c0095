"""Ops that parse the same Examples become one, which goes over their bytes once.

What they are asked for has to be needed together: an Example may lack what another result needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tensorflow.core.framework import tensor_shape_pb2

from fusion.passes.analysis.equal_tensors import are_equal
from fusion.passes.analysis.results import results_of
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.parsing import (
    PARSE_V2,
    Feature,
    ListFeature,
    ParseSpec,
    match_parsers,
)
from fusion.schema.attributes import MAX_FEATURES

_SPARSE, _DENSE, _RAGGED = range(3)
#: The inputs in front are Examples, their names, and keys of each kind.
_FIRST_DEFAULT = 5
#: How many outputs each kind of feature has.
_OUTPUTS = (3, 1, 2)


class _Asked(NamedTuple):
    """A feature that is asked for.

    Attributes:
        kind: whether it is sparse, dense or ragged.
        feature: the feature.
        default: of a dense one.
        shape: likewise.
    """

    kind: int
    feature: Feature
    default: Value | None = None
    shape: tensor_shape_pb2.TensorShapeProto | None = None

    @property
    def split_dtype(self) -> int:
        """That of row splits; 0 where there are none."""
        return self.feature.split_dtype if isinstance(self.feature, ListFeature) else 0

    def agrees(self, other: _Asked) -> bool:
        """Whether a parser may be asked for both: they are the same, if they have one key."""
        one, two = self.default, other.default
        return (
            self.kind == other.kind
            and self.feature.dtype == other.feature.dtype
            and self.split_dtype == other.split_dtype
            and self.shape == other.shape
            and (one is None or two is None or are_equal(one, two))
        )


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
    asked: list[_Asked]
    results: frozenset[str]

    @property
    def device(self) -> str:
        """Where it is placed."""
        return self.node.view.nodes[self.node.name].device


class _Group(NamedTuple):
    """Parsers that become one, and what they are asked for, by key."""

    parsers: list[_Parser]
    features: dict[bytes, _Asked]

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
        asked = [*_asked(node, spec)]
        defaults = [one.default.node for one in asked if one.default is not None]
        if reached(defaults, view.before).keys().isdisjoint(names):
            yield _Parser(node, spec.names, asked, results_of(view, node.name))


def _asked(node: Node, spec: ParseSpec) -> Iterator[_Asked]:
    yield from (_Asked(_SPARSE, one) for one in spec.sparse)
    shapes = node.attr("dense_shapes")
    for index, one in enumerate(spec.dense):
        shape = None if shapes is None else shapes.list.shape[index]
        yield _Asked(_DENSE, one, node.input(_FIRST_DEFAULT + index), shape)
    yield from (_Asked(_RAGGED, one) for one in spec.ragged)


def _numbers(features: list[_Asked]) -> dict[bytes, list[int]]:
    """Returns the numbers of the outputs of each feature, by its key, of features by kind."""
    numbers, start = defaultdict[bytes, list[int]](list), 0
    for kind, outputs in enumerate(_OUTPUTS):
        keys = [one.feature.key for one in features if one.kind == kind]
        for _ in range(outputs):
            for number, key in enumerate(keys, start):
                numbers[key].append(number)
            start += len(keys)
    return numbers


def _merge(edit: GraphEdit, group: _Group) -> None:
    """Puts one parser in the place of the first."""
    first = group.parsers[0].node
    features = sorted(group.features.values(), key=lambda one: one.kind)
    kinds = [[one for one in features if one.kind == kind] for kind in range(3)]
    sparse, dense, ragged = kinds
    stock = edit.view.nodes[first.name]
    build = NodeBuilder(edit, first.name, stock.device, first.input(0).node)
    node = build.node("", PARSE_V2)
    node.name = first.name
    for key, value in stock.attr.items():
        if key.startswith("_") and key != "_output_shapes":
            node.attr[key].CopyFrom(value)
    build.inputs(node, first.input(0).tensor, first.input(1).tensor)
    for some, role in zip(kinds, ("sparse_keys", "dense_keys", "ragged_keys"), strict=True):
        build.inputs(node, build.texts(role, [one.feature.key for one in some]))
    build.inputs(node, *(one.default.tensor for one in dense if one.default is not None))
    set_attrs(node, num_sparse=len(sparse))
    set_types(
        node,
        sparse_types=[one.feature.dtype for one in sparse],
        Tdense=[one.feature.dtype for one in dense],
        ragged_value_types=[one.feature.dtype for one in ragged],
        ragged_split_types=[one.split_dtype for one in ragged],
    )
    node.attr["dense_shapes"].list.shape.extend(one.shape for one in dense if one.shape is not None)
    edit.add(node, at=first.name)
    new = _numbers(features)
    for parser in group.parsers:
        for key, numbers in _numbers(parser.asked).items():
            for number, to in zip(numbers, new[key], strict=True):
                edit.replace(Tensor(parser.node.name, number), Tensor(first.name, to))
    edit.remove([parser.node.name for parser in group.parsers], first.name)
