"""What the check of graphs against op lists finds in graphs that a release refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

from tests.op_lists import RELEASES, op_lists
from tests.op_lists.check import as_saved_by, problems
from tests.passes.rewritten_graphs import nodes

v1 = tf.compat.v1


def graph() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as built:
        table = v1.placeholder(tf.float32, [None, 2], "table")
        ids = v1.placeholder(tf.int32, [None], "ids")
        tf.raw_ops.SparseSegmentMean(data=table, indices=ids, segment_ids=ids, name="mean")
        return as_saved_by(built.as_graph_def(), "1.15")


def function() -> graph_pb2.GraphDef:
    @tf.function(autograph=False)
    def double(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.AddV2(x=x, y=x, name="sum")

    graph_def = graph_pb2.GraphDef()
    concrete = double.get_concrete_function(tf.TensorSpec([2], tf.float32))
    graph_def.library.function.add().CopyFrom(concrete.function_def)
    return graph_def


def set_type(key: str, dtype: int) -> Callable[[Any], None]:
    return lambda node: node.attr[key].__setattr__("type", dtype)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another op": (lambda node: setattr(node, "op", "Frobnicate"), "mean: no op Frobnicate"),
    "a newer attr": (set_type("Tsegmentids", types_pb2.DT_INT32), "no attr Tsegmentids"),
    "a value": (set_type("T", types_pb2.DT_HALF), "T is half"),
    "no kernel": (set_type("Tidx", types_pb2.DT_INT64), "no kernel for "),
    "no attr": (lambda node: node.attr.pop("T"), "attr T is missing"),
    "an input": (lambda node: node.input.__setitem__(2, "table"), "table is float, not int32"),
    "an input less": (lambda node: node.input.pop(), "2 inputs, not 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_node_is_found(name: str) -> None:
    graph_def = graph()
    assert problems(graph_def, "1.15") == []
    change, message = WRONG[name]
    change(nodes(graph_def)["mean"])
    assert message in "\n".join(problems(graph_def, "1.15"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("sum:y:0", "1 inputs, not 2"), ("x", "x is double, not float"), ("", "no op Frobnicate")],
)
def test_functions_are_looked_at_too(text: str, message: str) -> None:
    graph_def = function()
    assert problems(graph_def, "1.15") == []
    (body,) = graph_def.library.function
    (node,) = (node for node in body.node_def if node.name == "sum")
    if text == "x":
        body.signature.input_arg[0].type = types_pb2.DT_DOUBLE
    elif text:
        del node.input[1]
    else:
        node.op = "Frobnicate"
    assert message in "\n".join(problems(graph_def, "1.15"))


@pytest.mark.parametrize("release", RELEASES)
def test_the_lists_are_of_their_release(release: str) -> None:
    lists = op_lists(release)
    assert len(lists.ops) > 1000 < sum(map(len, lists.kernels.values()))
    first = {"DisableCopyOnRead": "2.15", "DenseBincount": "2.4", "SelectV2": "1.15"}
    order = [*RELEASES]
    for op, since in first.items():
        assert (op in lists.ops) == (order.index(release) >= order.index(since))
        assert (op in lists.kernels) == (op in lists.ops)
