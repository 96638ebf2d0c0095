"""Which nodes are known to compute the same, each beside one that may not."""

from __future__ import annotations

import pytest

from fusion.passes.analysis.equal_tensors import are_equal, is_among
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

PRELUDE = """
%x = Placeholder() {dtype=int64 shape=[-1, 4]}
%z = Placeholder() {dtype=int64 shape=[-1, 4]}
%one = const(int64[]:1)
%one_too = const(int64[]:1)
%two = const(int64[]:2)
%axis = const(int32[]:1)
"""


@pytest.mark.parametrize(
    ("lines", "is_equal"),
    [
        ("%a = FloorMod(x, one) {T=int64}\n%b = FloorMod(x, one) {T=int64}", True),
        ("%a = FloorMod(x, one) {T=int64}\n%b = FloorMod(x, one_too) {T=int64}", True),
        (
            "%i = Identity(x) {T=int64}\n"
            "%a = AddV2(i, one) {T=int64}\n"
            "%b = AddV2(x, one) {T=int64}",
            True,
        ),
        ("%a = Identity(x) {T=int64}\n%b = Identity(x) {T=int64}", True),
        ("%a = FloorMod(x, one) {T=int64}\n%b = FloorMod(x, two) {T=int64}", False),
        ("%a = FloorMod(x, one) {T=int64}\n%b = FloorMod(z, one) {T=int64}", False),
        ("%a = FloorMod(x, one) {T=int64}\n%b = FloorDiv(x, one) {T=int64}", False),
        ("%a = FloorMod(x, one) {T=int64}\n%b = FloorMod(one, x) {T=int64}", False),
        (
            "%a = ArgMax(x, axis) {T=int64 Tidx=int32 output_type=int32}\n"
            "%b = ArgMax(x, axis) {T=int64 Tidx=int32 output_type=int64}",
            False,
        ),
        ("%a = Identity(x) {T=int64}\n%b = Identity(z) {T=int64}", False),
        # Numbers that are other ones each time.
        (
            "%a = RandomUniformInt(one, one, two) {T=int64 Tout=int64}\n"
            "%b = RandomUniformInt(one, one, two) {T=int64 Tout=int64}",
            False,
        ),
        # What runs at another time may find another shape of what it reads, or nothing.
        (
            "%a = FloorMod(x, one) {T=int64}\n%b = FloorMod(x, one, ^a) {T=int64}",
            False,
        ),
        ("%a = OpThatNobodyKnows(x) {}\n%b = OpThatNobodyKnows(x) {}", False),
    ],
)
def test_equal_nodes(lines: str, is_equal: bool) -> None:
    view = GraphView.of_graph(parse_graph(PRELUDE + lines))
    others = {Value(view, Tensor("one")), Value(view, Tensor("a"))}
    assert are_equal(Value(view, Tensor("a")), Value(view, Tensor("b"))) is is_equal
    assert is_among(Value(view, Tensor("b")), others) is is_equal


def test_another_output() -> None:
    lines = "%a = Split(axis, x) {T=int64 num_split=2}\n%b = Split(axis, x) {T=int64 num_split=2}"
    view = GraphView.of_graph(parse_graph(PRELUDE + lines))
    assert are_equal(Value(view, Tensor("a", 1)), Value(view, Tensor("b", 1)))
    assert not are_equal(Value(view, Tensor("a", 1)), Value(view, Tensor("b", 0)))


@pytest.mark.parametrize(("length", "is_equal"), [(20, True), (200, False)])
def test_long_chains(length: int, is_equal: bool) -> None:
    lines = ["%a0 = Identity(x) {T=int64}", "%b0 = Identity(x) {T=int64}"]
    lines += [
        f"%{n}{k + 1} = FloorMod({n}{k}, {n}{k}) {{T=int64}}" for k in range(length) for n in "ab"
    ]
    view = GraphView.of_graph(parse_graph(PRELUDE + "\n".join(lines)))
    assert (
        are_equal(Value(view, Tensor(f"a{length}")), Value(view, Tensor(f"b{length}"))) is is_equal
    )
