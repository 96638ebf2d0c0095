"""Nodes and values say of a graph what its view says."""

from __future__ import annotations

import pytest

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

TEXT = """
%x = Placeholder() {dtype=int64 shape=[-1, 4]}
%number = const(int32[]:3)
%one = const(int32[1]:[3])
%pair = const(int32[2]:[3, 4])
%first = Identity(x) {T=int64}
%second = Identity(first) {T=int64}
%late = Identity(x, ^number) {T=int64}
%halves = Split(number, second) {T=int64 num_split=2}
%sum = AddV2(halves, halves:1) {T=int64}
"""


def view_of() -> GraphView:
    return GraphView.of_graph(parse_graph(TEXT))


@pytest.mark.parametrize(
    ("name", "scalar", "item", "elements"),
    [
        ("number", 3, 3, 3),
        ("one", None, 3, [3]),
        ("pair", None, None, [3, 4]),
        ("x", None, None, None),
    ],
)
def test_numbers(name: str, scalar: object, item: object, elements: object) -> None:
    value = Node(view_of(), name).output()
    assert (value.scalar, value.item, value.elements) == (scalar, item, elements)


def test_a_producer_is_behind_aliases() -> None:
    value = Node(view_of(), "halves").input(1)
    assert (value.node, value.producer.name, value.producer.op) == ("second", "x", "Placeholder")
    assert value.path == (*value.aliases, "x") == ("second", "first", "x")
    assert value.resolved == value.producer.output()
    assert value.shape == (None, 4)
    late = Node(view_of(), "late").output()
    assert (late.producer.name, late.producer.controls) == ("late", ("number",))


def test_inputs_and_uses() -> None:
    view = view_of()
    (total,) = named(view, "AddV2")
    halves = Node(view, "halves")
    assert total.inputs == (halves.output(0), halves.output(1))
    assert [total.input(-1), total.input_count] == [total.inputs[1], 2]
    uses = [(total, 0, Tensor("halves")), (total, 1, Tensor("halves", 1))]
    assert [*halves.uses] == uses
    assert [*halves.output(1).uses] == uses[1:]


def test_values_of_two_graphs_are_not_equal() -> None:
    one, other = view_of(), view_of()
    assert Value(one, Tensor("x")) == Value(one, Tensor("x"))
    assert Value(one, Tensor("x")) != Value(other, Tensor("x"))
    assert str(Value(one, Tensor("halves", 1))) == "halves:1"
