"""Index tensors as loops, each rule beside a case where it must give up."""

from __future__ import annotations

import pytest

from fusion.passes.analysis.index_grids import Grid, columns, grid
from fusion.passes.analysis.symbolic_shapes import Dim, Item
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

PRELUDE = """
%x = Placeholder() {dtype=int32 shape=[-1, 3]}
%n = Placeholder() {dtype=int32 shape=[1]}
%zero = const(int32[]:0)
%one = const(int32[]:1)
%two = const(int32[]:2)
%three = const(int32[]:3)
%five = const(int32[]:5)
%at0 = const(int32[1]:[0])
%at1 = const(int32[1]:[1])
%flat = const(int32[1]:[-1])
%swap = const(int32[2]:[1, 0])
%three_times = const(int32[1]:[3])
%wide = const(int32[2]:[1, 3])
%count = const(int32[3]:[0, 1, 2])
%rows = Range(zero, three, one) {Tidx=int32}
%first = StridedSlice(n, at0, at1, at1) {Index=int32 T=int32 shrink_axis_mask=1}
%batch = Range(zero, first, one) {Tidx=int32}
%column = ExpandDims(batch, one) {T=int32 Tdim=int32}
"""
B = Item(Tensor("n"), 0)


def result(text: str) -> Value:
    return Value(GraphView.of_graph(parse_graph(PRELUDE + text)), Tensor("y"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%y = Identity(batch) {T=int32}", Grid(((B,),), ((1,),))),
        ("%y = Range(one, three, one) {Tidx=int32}", None),
        ("%y = Range(zero, three, two) {Tidx=int32}", None),
        ("%y = Identity(column) {T=int32}", Grid(((B,), ()), ((1,), ()))),
        ("%y = Tile(column, wide) {T=int32 Tmultiples=int32}", Grid(((B,), (3,)), ((1,), (0,)))),
        ("%y = Tile(column, at1) {T=int32 Tmultiples=int32}", None),
        (
            "%t = Tile(column, wide) {T=int32 Tmultiples=int32}\n"
            "%y = Reshape(t, flat) {T=int32 Tshape=int32}",
            Grid(((B, 3),), ((1, 0),)),
        ),
        (
            "%t = Tile(column, wide) {T=int32 Tmultiples=int32}\n"
            "%y = Reshape(t, at1) {T=int32 Tshape=int32}",
            None,
        ),
        ("%y = Tile(rows, n) {T=int32 Tmultiples=int32}", Grid(((B, 3),), ((0, 1),))),
        (
            "%t = Tile(rows, n) {T=int32 Tmultiples=int32}\n%y = Mul(five, t) {T=int32}",
            Grid(((B, 3),), ((0, 5),)),
        ),
        ("%y = Mul(rows, rows) {T=int32}", None),
        ("%y = AddV2(rows, count) {T=int32}", Grid(((3,),), ((2,),))),
        ("%y = AddV2(rows, batch) {T=int32}", None),
        (
            "%y = Reshape(x, flat) {T=int32 Tshape=int32}",
            Grid(((Dim(Tensor("x"), 0), 3),), ((0, 0),), Tensor("x")),
        ),
        (
            "%f = Reshape(x, flat) {T=int32 Tshape=int32}\n%y = AddV2(f, f) {T=int32}",
            None,
        ),
        ("%y = const(int32[6]:[0, 4, 8, 0, 4, 8])", Grid(((2, 3),), ((0, 4),))),
        ("%y = const(int32[6]:[0, 0, 1, 1, 2, 2])", Grid(((3, 2),), ((1, 0),))),
        ("%y = const(int32[4]:[0, 0, 0, 0])", Grid(((4,),), ((0,),))),
        ("%y = const(int32[1]:[0])", Grid(((),), ((),))),
        ("%y = const(int32[4]:[0, 1, 3, 4])", None),
        ("%y = const(int32[2]:[1, 2])", None),
        ("%y = BroadcastTo(rows, three_times) {T=int32 Tidx=int32}", Grid(((3,),), ((1,),))),
        ("%y = BroadcastTo(rows, wide) {T=int32 Tidx=int32}", None),
        ("%y = Identity(batch, ^x) {T=int32}", None),
    ],
)
def test_grids(text: str, expected: Grid | None) -> None:
    assert grid(result(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%y = Pack(rows, count) {N=2 T=int32 axis=1}", 2),
        ("%y = Pack(rows, count) {N=2 T=int32 axis=0}", None),
        (
            "%p = Pack(rows, count) {N=2 T=int32 axis=0}\n"
            "%y = Transpose(p, swap) {T=int32 Tperm=int32}",
            2,
        ),
        (
            "%p = Pack(rows, count) {N=2 T=int32 axis=1}\n"
            "%y = Transpose(p, swap) {T=int32 Tperm=int32}",
            None,
        ),
        ("%y = const(int64[2, 2]:[[0, 0], [1, 0]])", 2),
        ("%y = const(int64[2, 2]:[[0, 7], [1, 0]])", None),
        ("%y = Identity(x) {T=int32}", None),
    ],
)
def test_columns(text: str, expected: int | None) -> None:
    found = columns(result(text))
    assert (None if found is None else len(found)) == expected
