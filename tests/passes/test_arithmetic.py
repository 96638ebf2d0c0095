"""Expressions of ids: what they compute counts, not how; each rule beside one where it gives up."""

from __future__ import annotations

import pytest

from fusion.passes.analysis.expressions import Call, Expression, call, expression
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

PRELUDE = """
%x = Placeholder() {dtype=int64 shape=[-1]}
%m = Placeholder() {dtype=int64 shape=[-1, 2]}
%other = Placeholder() {dtype=int64 shape=[-1]}
%two = const(int64[]:2)
%ten = const(int64[]:10)
%zero = const(int64[]:0)
%pair = const(int64[2]:[1, 2])
%flat = const(int32[1]:[-1])
%five = const(int32[1]:[5])
"""


def expression_of(text: str) -> tuple[Expression, tuple[str, ...]] | None:
    view = GraphView.of_graph(parse_graph(PRELUDE + text))
    return expression(Value(view, Tensor("y")), {Value(view, Tensor("x")): "id"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%y = FloorDiv(x, two) {T=int64}", call("div", "id", 2)),
        ("%c = FloorDiv(ten, two) {T=int64}\n%y = FloorMod(x, c) {T=int64}", call("mod", "id", 5)),
        ("%y = Sub(x, zero) {T=int64}", "id"),
        ("%y = Sub(x, two) {T=int64}", call("sub", "id", 2)),
        ("%y = AddV2(zero, x) {T=int64}", "id"),
        ("%y = Maximum(two, x) {T=int64}", call("max", "id", 2)),
        ("%c = Cast(x) {SrcT=int64 DstT=int32}\n%y = Identity(c) {T=int32}", "id"),
        ("%f = Cast(x) {SrcT=int64 DstT=float}\n%y = Cast(f) {SrcT=float DstT=int64}", None),
        ("%y = Reshape(x, flat) {T=int64 Tshape=int32}", "id"),
        ("%y = Reshape(x, five) {T=int64 Tshape=int32}", None),
        ("%y = Reshape(m, flat) {T=int64 Tshape=int32}", None),
        ("%y = FloorDiv(x, pair) {T=int64}", None),
        ("%y = FloorDiv(other, two) {T=int64}", None),
        ("%y = FloorDiv(x, two, ^other) {T=int64}", None),
        ("%y = Minimum(x, two) {T=int64}", None),
    ],
)
def test_expressions(text: str, expected: Expression | None) -> None:
    found = expression_of(text)
    assert (None if found is None else found[0]) == expected


def test_the_nodes_of_an_expression_are_named() -> None:
    text = "%a = FloorDiv(x, two) {T=int64}\n%b = Identity(a) {T=int64}\n%y = Sub(b, two) {T=int64}"
    found = expression_of(text)
    assert found is not None
    assert set(found[1]) == {"y", "b", "a"}


def test_constants_are_folded_but_for_a_division_by_zero() -> None:
    assert call("div", 7, 2) == 3
    assert call("mod", -1, 3) == 2
    assert call("less", 1, 2) == Call("less", (1, 2))
    assert call("div", 7, 0) == Call("div", (7, 0))
