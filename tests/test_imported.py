"""Recorded shapes: taken where they say more than TensorFlow infers, ignored if they contradict."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2

from fusion.running.imported import forget_contradictions, imported_function, imported_graph

Nodes = dict[str, list[int]]


def graph_of(recorded: Nodes) -> graph_pb2.GraphDef:
    """x float32[?, 4] -> y = relu(x), z = unique(y) of any length, with recorded shapes."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.nn.relu(x, name="y")
        tf.raw_ops.Unique(x=tf.reshape(y, [-1]), name="z")
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        record(node.attr, recorded.get(node.name))
    return graph_def


def record(attr: object, shape: list[int] | None) -> None:
    if shape is not None:
        proto = tf.TensorShape([None if n < 0 else n for n in shape]).as_proto()
        attr["_output_shapes"].list.shape.add().CopyFrom(proto)  # type: ignore[index]


def shape_of(graph: tf.Graph, name: str) -> list[int | None]:
    sizes: list[int | None] = graph.get_tensor_by_name(f"{name}:0").shape.as_list()
    return sizes


def test_recorded_shapes_are_taken() -> None:
    assert shape_of(imported_graph(graph_of({})), "y") == [None, 4]
    assert shape_of(imported_graph(graph_of({"y": [7, 4]})), "y") == [7, 4]


@pytest.mark.parametrize("wrong", [[7], [-1, 5]])
def test_contradictions_are_ignored(wrong: list[int]) -> None:
    graph_def = graph_of({"x": [-1, 4], "y": wrong})
    before = graph_def.SerializeToString(deterministic=True)
    with pytest.raises(ValueError, match="inconsistent"), tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
    assert shape_of(imported_graph(graph_def), "y") == [None, 4]
    assert graph_def.SerializeToString(deterministic=True) == before
    forget_contradictions(graph_def)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    assert shape_of(graph, "y") == [None, 4]


@pytest.mark.parametrize("recorded", [{}, {"x": [-1, 4]}])
def test_a_graph_that_is_none_is_refused(recorded: Nodes) -> None:
    graph_def = graph_of(recorded)
    graph_def.node[-1].input[0] = "elsewhere"
    with pytest.raises(ValueError, match="elsewhere"):
        imported_graph(graph_def)


def test_shapes_without_contradiction_stay() -> None:
    graph_def = graph_of({"y": [7, 4]})
    before = graph_def.SerializeToString(deterministic=True)
    forget_contradictions(graph_def)
    assert graph_def.SerializeToString(deterministic=True) == before


def test_shapes_of_other_outputs_are_forgotten() -> None:
    """A call of which outputs were dropped has the shapes of all."""
    graph_def = graph_of({"x": [-1, 4], "y": [-1, 4]})
    record(next(node for node in graph_def.node if node.name == "y").attr, [-1])
    forget_contradictions(graph_def)
    left = [node.name for node in graph_def.node if "_output_shapes" in node.attr]
    assert left == ["x"]


def function_of(shape: list[int]) -> function_pb2.FunctionDef:
    """A function of one argument, float32[?, 4], with the shape that is recorded of its result."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def rectified(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x, name="y")

    definition = function_pb2.FunctionDef()
    definition.CopyFrom(rectified.get_concrete_function().function_def)
    record(next(node for node in definition.node_def if node.op == "Relu").attr, shape)
    shapes = definition.attr["_input_shapes"].list.shape
    shapes.add().CopyFrom(tf.TensorShape([None, 4]).as_proto())
    return definition


@pytest.mark.parametrize(("recorded", "shape"), [([7, 4], [7, 4]), ([7], [None, 4])])
def test_functions_likewise(recorded: list[int], shape: list[int | None]) -> None:
    definition = function_of(recorded)
    with tf.Graph().as_default():
        graph = imported_function(definition)
    assert graph.outputs[0].shape.as_list() == shape
