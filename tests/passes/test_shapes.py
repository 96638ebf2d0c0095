"""Symbolic shape arithmetic, each rule beside a case where it must give up."""

from __future__ import annotations

import pytest

from fusion.passes.analysis.symbolic_shapes import Dim, Element, Item, Product, ShapeMath
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

SHAPE, RESULT = Tensor("s"), Tensor("y")
PRELUDE = """
%s = Placeholder() {dtype=int64 shape=[3]}
%u = Placeholder() {dtype=int64 shape=?}
%x = Placeholder() {dtype=float shape=[-1, 4]}
%zero = const(int32[]:0)
%one = const(int32[]:1)
%zero1 = const(int32[1]:[0])
%one1 = const(int32[1]:[1])
%two1 = const(int32[1]:[2])
%rest = const(int32[1]:[-1])
"""


def result(line: str) -> Value:
    return Value(GraphView.of_graph(parse_graph(PRELUDE + line)), RESULT)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%y = Slice(s, zero1, two1) {Index=int32 T=int64}", (Item(SHAPE, 0), Item(SHAPE, 1))),
        ("%y = Slice(s, one1, rest) {Index=int32 T=int64}", (Item(SHAPE, 1), Item(SHAPE, 2))),
        ("%y = Slice(u, zero1, two1) {Index=int32 T=int64}", (Item(RESULT, 0), Item(RESULT, 1))),
        ("%y = Slice(u, zero1, u) {Index=int32 T=int64}", None),
        ("%y = Shape(x) {T=float out_type=int32}", (Dim(Tensor("x"), 0), 4)),
        ("%y = Shape(u) {T=int64 out_type=int32}", None),
        ("%y = Pack(one, zero) {N=2 T=int32 axis=0}", (1, 0)),
        ("%y = Pack(one1, zero1) {N=2 T=int32 axis=0}", None),
        ("%y = Pack(one, zero) {N=2 T=int32 axis=1}", None),
        ("%y = ConcatV2(two1, zero1, zero) {N=2 T=int32 Tidx=int32}", (2, 0)),
        ("%y = ConcatV2(two1, zero1, one) {N=2 T=int32 Tidx=int32}", None),
        ("%y = ConcatV2(two1, u, zero) {N=2 T=int32 Tidx=int32}", None),
        ("%y = ConcatV2(two1, one, zero) {N=2 T=int32 Tidx=int32}", None),
        ("%y = ConcatV2(one, two1, zero) {N=2 T=int32 Tidx=int32}", None),
        ("%y = Cast(s) {DstT=int32 SrcT=int64}", tuple(Item(SHAPE, i) for i in range(3))),
        ("%y = Cast(x) {DstT=int32 SrcT=float}", None),
        (
            "%y = StridedSlice(s, zero1, two1, one1) {Index=int32 T=int64 begin_mask=1}",
            (Item(SHAPE, 0), Item(SHAPE, 1)),
        ),
        ("%y = StridedSlice(s, zero1, two1, two1) {Index=int32 T=int64}", (Item(RESULT, 0),)),
        ("%y = StridedSlice(s, zero1, two1, one1) {Index=int32 T=int64 new_axis_mask=1}", None),
        ("%y = AddV2(s, s) {T=int64}", tuple(Item(RESULT, i) for i in range(3))),
        ("%y = AddV2(s, u) {T=int64}", None),
        ("%y = ExpandDims(one, zero) {T=int32 Tdim=int32}", (1,)),
        ("%y = ExpandDims(one1, zero) {T=int32 Tdim=int32}", None),
        ("%y = Fill(two1, one) {T=int32 index_type=int32}", (1, 1)),
        ("%y = Fill(s, one) {T=int32 index_type=int64}", None),
        ("%y = FloorMod(s, s) {T=int64}", tuple(Item(RESULT, i) for i in range(3))),
        ("%y = FloorMod(s, u) {T=int64}", None),
    ],
)
def test_vector(line: str, expected: tuple[Element, ...] | None) -> None:
    assert ShapeMath().vector(result(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%y = GatherV2(s, one, zero) {Taxis=int32 Tindices=int32 Tparams=int64}", Item(SHAPE, 1)),
        ("%y = GatherV2(s, one, one) {Taxis=int32 Tindices=int32 Tparams=int64}", None),
        ("%y = GatherV2(u, one, zero) {Taxis=int32 Tindices=int32 Tparams=int64}", None),
        (
            "%y = Prod(s, zero1) {T=int64 Tidx=int32 keep_dims=False}",
            Product(tuple(Item(SHAPE, i) for i in range(3))),
        ),
        ("%y = Prod(s, zero1) {T=int64 Tidx=int32 keep_dims=True}", None),
        ("%y = Prod(s, one1) {T=int64 Tidx=int32 keep_dims=False}", None),
        ("%y = Prod(two1, zero1) {T=int32 Tidx=int32 keep_dims=False}", 2),
        (
            "%p = Slice(s, zero1, one1) {Index=int32 T=int64}\n"
            "%y = Prod(p, zero1) {T=int64 Tidx=int32 keep_dims=False}",
            Item(SHAPE, 0),
        ),
        (
            "%y = StridedSlice(s, one1, two1, one1) {Index=int32 T=int64 shrink_axis_mask=1}",
            Item(SHAPE, 1),
        ),
        ("%y = StridedSlice(s, one1, two1, one1) {Index=int32 T=int64}", None),
        ("%y = Rank(x) {T=float}", 2),
        ("%y = Rank(u) {T=int64}", None),
        ("%y = Size(x) {T=float out_type=int32}", Product((Dim(Tensor("x"), 0), 4))),
        ("%y = Size(u) {T=int64 out_type=int32}", None),
        ("%r = Rank(x) {T=float}\n%y = Sub(r, one) {T=int32}", 1),
        ("%r = Rank(u) {T=int64}\n%y = Sub(r, one) {T=int32}", None),
    ],
)
def test_scalar(line: str, expected: Element | None) -> None:
    assert ShapeMath().scalar(result(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%y = UnsortedSegmentSum(x, ids, five) {Tindices=int32 T=float}", (5, 4)),
        ("%y = UnsortedSegmentSum(x, ids, one1) {Tindices=int32 T=float}", None),
        ("%y = Split(one, x) {num_split=2 T=float}", (None, 2)),
        ("%y = Split(one1, x) {num_split=2 T=float}", None),
        ("%y = Split(five, x) {num_split=2 T=float}", None),
    ],
)
def test_shapes_of_numbers_that_are_vectors(
    line: str, expected: tuple[int | None, ...] | None
) -> None:
    """TensorFlow refuses them when they run; nobody is to stumble over them before."""
    more = "%five = const(int32[]:5)\n%ids = Placeholder() {dtype=int32 shape=[-1]}\n"
    assert result(more + line).shape == expected


def test_what_the_caller_knows_wins() -> None:
    shape = result("%y = Shape(u) {T=int64 out_type=int32}")
    batch = Item(SHAPE, 0)
    assert ShapeMath({Tensor("u"): (batch, 8)}).vector(shape) == (batch, 8)
    assert ShapeMath({Tensor("x"): (batch, 8)}).vector(shape) is None
