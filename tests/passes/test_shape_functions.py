"""Shapes that TensorFlow's own functions tell, each beside a graph that tells none."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

v1 = tf.compat.v1

PRELUDE = """
%x = Placeholder() {dtype=int64 shape=[-1, 4]}
%u = Placeholder() {dtype=int64 shape=?}
%s = Placeholder() {dtype=int64 shape=[3]}
%zero = const(int32[]:0)
%one = const(int32[]:1)
%two1 = const(int32[1]:[2])
%twice = const(int32[2]:[1, 2])
%pads = const(int32[2, 2]:[0, 0, 3, 0])
"""


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("%y = FloorMod(x, x) {T=int64}", (None, 4)),
        ("%y = FloorMod(x, u) {T=int64}", None),
        ("%y = Tile(x, twice) {T=int64 Tmultiples=int32}", (None, 8)),
        ("%y = Tile(x, s) {T=int64 Tmultiples=int64}", None),
        ("%y = Pad(x, pads) {T=int64 Tpaddings=int32}", (None, 7)),
        ("%y = Fill(s, zero) {T=int32 index_type=int64}", (None, None, None)),
        ("%y = Fill(u, zero) {T=int32 index_type=int64}", None),
        ("%y = Shape(u) {T=int64 out_type=int32}", (None,)),
        ("%y = ConcatV2(x, x, one) {N=2 T=int64 Tidx=int32}", (None, 8)),
        ("%y = AsString(x) {T=int64}", (None, 4)),
        ("%y = _TensorToHashBucketFast(x) {T=int64 num_buckets=9}", (None, 4)),
        # Damaged nodes, of which TensorFlow takes none.
        ("%y = FloorMod(x) {T=int64}", None),
        ("%y = FloorMod(x, x, x) {T=int64}", None),
        ("%y = FloorMod(x, zero) {T=int64}", None),
        ("%y = FloorMod(x, missing) {T=int64}", None),
        ("%y = FloorMod(x, x:7) {T=int64}", None),
        ("%y = FloorMod(x, y) {T=int64}", None),
        ("%y = ConcatV2(x, s, one) {N=2 T=int64 Tidx=int32}", None),
        ("%y = ConcatV2(x, one) {N=-1 T=int64 Tidx=int32}", None),
        ("%y = OpThatNobodyKnows(x) {}", None),
        # What follows whatever is behind it.
        ("%z = OpThatNobodyKnows(x) {}\n%y = FloorMod(x, z) {T=int64}", None),
        ("%z = FloorMod(x, missing) {T=int64}\n%y = Shape(z) {T=int64 out_type=int32}", (None,)),
        (
            "%z = FloorMod(x, missing) {T=int64}\n%y = Select(z, x, x) {T=int64}",
            None,
        ),
    ],
)
def test_shapes(line: str, shape: Shape | None) -> None:
    assert GraphView.of_graph(parse_graph(PRELUDE + line)).shape(Tensor("y")) == shape


def test_an_output_that_a_node_does_not_have() -> None:
    view = GraphView.of_graph(parse_graph(PRELUDE + "%y = FloorMod(x, x) {T=int64}"))
    assert view.shape(Tensor("y", 1)) is None


def test_long_chains() -> None:
    lines = ["%y0 = FloorMod(x, x) {T=int64}"]
    lines += [f"%y{k + 1} = FloorMod(y{k}, x) {{T=int64}}" for k in range(3000)]
    view = GraphView.of_graph(parse_graph(PRELUDE + "\n".join(lines)))
    assert view.shape(Tensor("y3000")) == (None, 4)


def test_a_large_constant_is_known_by_its_shape() -> None:
    with tf.Graph().as_default() as graph:
        sizes = tf.constant(np.ones(5000, np.int32))
        tf.raw_ops.Tile(input=sizes, multiples=[2], name="y")
    view = GraphView.of_graph(graph.as_graph_def())
    assert view.shape(Tensor("y")) == (10000,)


def test_calls_of_functions_have_no_shapes() -> None:
    with tf.Graph().as_default() as graph:
        called = tf.function(lambda x: x % 3, autograph=False)(v1.placeholder(tf.int64, [None, 3]))
        tf.math.floormod(called, 5, name="y")
    assert GraphView.of_graph(graph.as_graph_def()).shape(Tensor("y")) is None
