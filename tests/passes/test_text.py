"""Text of graphs: exact both ways, and clear about what it cannot read."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import tensor_util

from tests.graph_text import parse_graph, parse_node, print_graph, print_node, sections
from tests.graph_text_values import make_constant
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case


def test_a_node_reads_like_a_node() -> None:
    line = "%valid = GreaterEqual(ids, zero, ^init) {T=int64} class=loc:@ids device='/cpu:0'"
    node = parse_node(line)
    assert list(node.input) == ["ids", "zero", "^init"]
    assert node.attr["_class"].list.s[0] == b"loc:@ids"
    assert print_node(node) == line


@pytest.mark.parametrize("case", [Case(), Case("ref", "sum", 3, fast=True), Case(rank=None)])
def test_stock_graphs_round_trip(case: Case) -> None:
    graph_def = stock.build(case)
    assert parse_graph(print_graph(graph_def)) == graph_def
    optimized = stock.optimized(graph_def)
    assert parse_graph(print_graph(optimized)) == optimized


def test_functions_and_gradients_round_trip() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (y * 2.0,), [x])[0]

    graph = tf.function(step).get_concrete_function(tf.TensorSpec([None, 2])).graph
    graph_def = graph.as_graph_def(add_shapes=True)
    graph_def.library.gradient.add(function_name="f", gradient_func="g")
    assert graph_def.library.function
    assert parse_graph(print_graph(graph_def)) == graph_def


def test_odd_attributes_round_trip() -> None:
    node = node_def_pb2.NodeDef(name="odd", op="NoSuchOp", input=["a:3", "^b"])
    node.attr["text"].s = b'it\'s "quoted" {} = \\ \n'
    node.attr["bytes"].s = b"\xff\x00"
    node.attr["number"].f = float("-inf")
    node.attr["large"].i = -(2**62)
    node.attr["flags"].list.b.extend([True, False])
    node.attr["nothing"].list.SetInParent()
    node.attr["unset"].SetInParent()
    node.attr["named"].shape.dim.add(size=2, name="rows")
    node.attr["mixed"].list.i.append(1)
    node.attr["mixed"].list.f.append(1.5)
    node.attr["call"].func.name = "f"
    node.attr["call"].func.attr["T"].type = 1
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto([0.1, np.nan]))
    node.experimental_debug_info.original_node_names.append("before")
    graph_def = graph_pb2.GraphDef(node=[node])
    graph_def.versions.bad_consumers.extend([3, 4])
    assert parse_graph(print_graph(graph_def)) == graph_def


@pytest.mark.parametrize(
    "value",
    [
        np.array([[0.1, np.inf], [-0.0, 3]], np.float32),
        np.int64(4),
        np.zeros((0, 2), np.int32),
        [b"a", b"\xff'"],
        np.array([np.nan, -np.inf, 1]).astype(tf.bfloat16.as_numpy_dtype),
    ],
    ids=["floats", "scalar", "empty", "strings", "bfloat16"],
)
def test_constants_round_trip(value: object) -> None:
    node = node_def_pb2.NodeDef(name="c", op="Const")
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype
    assert parse_node(print_node(node)) == node


def test_a_constant_without_values_counts_up() -> None:
    value = tensor_util.MakeNdarray(make_constant("float32[2, 2]"))
    np.testing.assert_array_equal(value, np.arange(4).reshape(2, 2) / 64)


@pytest.mark.parametrize(
    "text",
    [
        "what is this",
        "%a = ",
        "%a = Op(x) {key}",
        "%a = Op(x) {} and more",
        "%a = Op(x) {key=[[1]]}",
        "%c = const(int32[2]:[1,)",
        "%c = const(int32[2]",
        "function f(x: float) -> (y: float)\n%n = Neg(x) {}",
    ],
)
def test_text_that_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_graph(text)


def test_sections_of_a_dump() -> None:
    dump = (
        "# title\n\n## ops\nA -> B\n\n## raw\n%a = A() {}\n%b = B(a) {}\n\n## after\n%b = B() {}\n"
    )
    assert sections(dump) == {"raw": "%a = A() {}\n%b = B(a) {}", "after": "%b = B() {}"}
