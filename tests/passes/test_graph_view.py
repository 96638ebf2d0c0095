"""The view: edges in both input syntaxes, aliases, constants, static shapes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import RETURN, Tensor, Use
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph

GRAPH = """
%x = Placeholder() {dtype=int64 shape=[-1, 2]}
%first = Identity(x) {T=int64}
%second = Identity(first) {T=int64}
%waiting = Identity(x, ^second) {T=int64}
%keys = Unique(second) {T=int64 out_idx=int32}
%both = AddV2(keys:1, keys:1) {T=int32}
%five = const(int32[2]:[5, 6])
%passed = Identity(five) {T=int32}
%shape = Shape(x) {T=int64 out_type=int64}
%target = Pack(five, five) {N=2 T=int32 axis=0}
%reshaped = SparseReshape(x, shape, shape) {}
%table = VarHandleOp() {container='' dtype=float shape=[7, 3] shared_name='t'}
%read = ReadVariableOp(table) {dtype=float}
"""
FUNCTION = """
function f(ids: int64, rows: float) -> (keys: int64)
  %u = Unique(ids) {T=int64}
  %unknown = OpThatNobodyKnows(u:y:0) {}
  %last = OpThatNobodyKnows(unknown:b:0, unknown:a:1, ^u) {}
  return keys=u:y:0
  control_return side=last
end
"""


@pytest.fixture
def view() -> GraphView:
    return GraphView.of_graph(parse_graph(GRAPH), frozenset({"both"}))


@pytest.fixture
def body() -> GraphView:
    return GraphView.of_function(parse_graph(FUNCTION).library.function[0])


def test_inputs_and_uses_know_the_output(view: GraphView) -> None:
    assert view.inputs("both") == (Tensor("keys", 1), Tensor("keys", 1))
    assert list(view.tensor_uses(Tensor("keys", 1))) == [
        Use("both", 0, Tensor("keys", 1)),
        Use("both", 1, Tensor("keys", 1)),
    ]
    assert not list(view.tensor_uses(Tensor("keys", 0)))


def test_control_edges_are_apart(view: GraphView) -> None:
    assert view.controls("waiting") == ("second",)
    assert view.control_uses("second") == ["waiting"]
    assert view.inputs("waiting") == (Tensor("x"),)
    assert view.controls("second") == ()


def test_a_node_that_is_not_there_has_nothing(view: GraphView) -> None:
    assert view.op("nowhere") == ""
    assert not view.inputs("nowhere")
    assert not view.controls("nowhere")
    assert view.shape(Tensor("nowhere")) is None


def test_aliases_are_followed_unless_they_wait(view: GraphView) -> None:
    assert view.resolve(Tensor("second")) == Tensor("x")
    assert view.aliases(Tensor("second")) == ("second", "first")
    assert view.resolve(Tensor("waiting")) == Tensor("waiting")
    assert view.aliases(Tensor("waiting")) == ()


def test_constants_are_seen_through_aliases(view: GraphView) -> None:
    np.testing.assert_array_equal(view.constant(Tensor("passed")), [5, 6])
    assert view.constant(Tensor("second")) is None


def test_constants_of_every_encoding() -> None:
    text = (
        "%a = const(int64[3]:[1, 2, 3])\n%b = const(int32[]:7)\n%c = const(float32[2]:[0.5, 1.5])"
    )
    view = GraphView.of_graph(parse_graph(text))
    np.testing.assert_array_equal(view.constant(Tensor("a")), [1, 2, 3])
    np.testing.assert_array_equal(view.constant(Tensor("b")), 7)
    np.testing.assert_array_equal(view.constant(Tensor("c")), [0.5, 1.5])


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (Tensor("second"), (None, 2)),
        (Tensor("five"), (2,)),
        (Tensor("shape"), (2,)),
        (Tensor("target"), (2, 2)),
        (Tensor("reshaped"), (None, 2)),
        (Tensor("reshaped", 1), (2,)),
        (Tensor("read"), (7, 3)),
        (Tensor("both"), (None,)),
    ],
)
def test_static_shapes(
    view: GraphView, tensor: Tensor, shape: tuple[int | None, ...] | None
) -> None:
    assert view.shape(tensor) == shape


SPLIT = """
%value = Placeholder() {dtype=int64 shape=[-1, 2]}
%sizes = Placeholder() {dtype=int32 shape=[3]}
%axis = const(int32[]:0)
%parts = SplitV(value, sizes, axis) {T=int64 Tlen=int32 num_split=3}
%many = Placeholder() {dtype=int64 shape=[26, -1, 1]}
%one = Unpack(many) {T=int64 axis=0 num=26}
%iterator = Placeholder() {dtype=resource shape=[]}
%next = IteratorGetNext(iterator) {output_shapes=[[-1, 3], ?] output_types=[float, float]}
"""


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (Tensor("parts", 2), (None, 2)),
        (Tensor("one", 25), (None, 1)),
        (Tensor("next"), (None, 3)),
        (Tensor("next", 1), None),
    ],
)
def test_shapes_of_parts_and_of_what_datasets_give(
    tensor: Tensor, shape: tuple[int | None, ...] | None
) -> None:
    assert GraphView.of_graph(parse_graph(SPLIT)).shape(tensor) == shape


def test_shapes_of_parsed_examples() -> None:
    with tf.Graph().as_default() as graph:
        tf.io.parse_example(
            tf.compat.v1.placeholder(tf.string, [None], "examples"),
            {
                "ids": tf.io.VarLenFeature(tf.int64),
                "price": tf.io.FixedLenFeature([2], tf.float32),
            },
        )
    view = GraphView.of_graph(graph.as_graph_def())
    (parse,) = view.named("ParseExampleV2")
    shapes = [view.shape(Tensor(parse, index)) for index in range(4)]
    assert shapes == [(None, 2), (None,), (2,), (None, 2)]


def test_recorded_shapes_win() -> None:
    text = "%x = Placeholder() {_output_shapes=[[3, -1]] dtype=float shape=?}"
    assert GraphView.of_graph(parse_graph(text)).shape(Tensor("x")) == (3, None)
    unknown = "%x = Placeholder() {_output_shapes=[?] dtype=float shape=?}"
    assert GraphView.of_graph(parse_graph(unknown)).shape(Tensor("x")) is None


def test_a_missing_attribute_has_its_default(view: GraphView) -> None:
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="u", op="Unique")
    bare = GraphView.of_graph(graph_def)
    assert bare.type_attr("u", "out_idx") == 3
    assert bare.int_attr("u", "no_such") == 0
    assert not graph_def.node[0].attr


def test_function_syntax(body: GraphView) -> None:
    assert body.inputs("unknown") == (Tensor("u", 0),)
    assert body.text(Tensor("u", 1)) == "u:idx:0"
    assert body.text(Tensor("ids")) == "ids"
    assert body.op("ids") == "_Arg"


def test_outputs_of_unknown_ops_stay_distinct(body: GraphView) -> None:
    first, second = body.inputs("last")
    assert first != second
    assert [body.text(first), body.text(second)] == ["unknown:b:0", "unknown:a:1"]


def test_returns_are_uses(body: GraphView) -> None:
    assert Use("u:y:0", -1, Tensor("u")) in body.uses("u")
    assert body.control_uses("last") == [RETURN]


def test_signatures_of_functions_come_first() -> None:
    signatures = OpSignatures(parse_graph(FUNCTION).library.function)
    assert signatures.op_def("f") is not None
    assert signatures.op_def("OpThatNobodyKnows") is None
    assert signatures.is_stateful("OpThatNobodyKnows")
    assert not signatures.is_stateful("Unique")
