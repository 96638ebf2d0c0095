"""Which ops that parse tf.Examples stay as they are, and which nearly do; and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report.front import ParserReport
from fusion.schema.names import PARSE_EXAMPLE
from tests.passes.parser_graphs import OPS, PASS, build, only, ops, parser, v1

# What is refused, beside what is not


Make = Callable[[], graph_pb2.GraphDef]


def with_node(change: Callable[[node_def_pb2.NodeDef], None]) -> Make:
    """A graph whose parser is changed."""

    def make() -> graph_pb2.GraphDef:
        graph_def = build("ParseExampleV2")
        change(only(graph_def, "ParseExampleV2"))
        return graph_def

    return make


def with_arguments(op: str = "ParseExampleV2", **changes: Any) -> Make:
    """A graph with other arguments, those of functions made in it."""

    def make() -> graph_pb2.GraphDef:
        with tf.Graph().as_default() as graph:
            shape = [] if op == "ParseSingleExample" else [None]
            serialized = v1.placeholder(tf.string, shape, "examples")
            made = {key: one() if callable(one) else one for key, one in changes.items()}
            parser(op, serialized, **made)
            return graph.as_graph_def()

    return make


def _set_device(device: str) -> Callable[[node_def_pb2.NodeDef], None]:
    def change(node: node_def_pb2.NodeDef) -> None:
        node.device = device

    return change


def _defaults(rate: Callable[[], tf.Tensor]) -> Callable[[], list[tf.Tensor]]:
    """Those of `parser`, but for that of the rates."""
    return lambda: [tf.constant([], tf.int64), rate(), tf.constant("")]


def _set_empty_strides(node: node_def_pb2.NodeDef) -> None:
    """Makes the shape of the text [?, 0], which TensorFlow refuses to build from 2.22 on."""
    shape = node.attr["dense_shapes"].list.shape[2]
    del shape.dim[:]
    for size in (-1, 0):
        shape.dim.add(size=size)


def _drop_shapes(node: node_def_pb2.NodeDef) -> None:
    del node.attr["dense_shapes"].list.shape[-1]


def _set_shape(*sizes: int | None) -> Callable[[node_def_pb2.NodeDef], None]:
    """Changes the shape of the rates, to one that TensorFlow makes no node of."""

    def change(node: node_def_pb2.NodeDef) -> None:
        shape = tf.TensorShape(sizes or None).as_proto()
        node.attr["dense_shapes"].list.shape[1].CopyFrom(shape)

    return change


REFUSED = {
    "keys that are fed": (
        with_arguments(sparse_keys=lambda: v1.placeholder(tf.string, [1], "keys")),
        "the keys are no constants",
    ),
    "a key of the first op that is fed": (
        with_arguments("ParseExample", sparse_keys=lambda: [v1.placeholder(tf.string, [])]),
        "the keys are no constants",
    ),
    "two features of one key": (
        with_arguments(sparse_keys=["id"]),
        "two features have one key",
    ),
    "two equal dense keys": (
        with_arguments("ParseSingleExample", dense_keys=["id", "id"]),
        "two features have one key",
    ),
    "a default of an unknown shape": (
        with_arguments(
            dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, None, "default"))
        ),
        "the shape of the default of rate is not known",
    ),
    "a default of an unknown size": (
        with_arguments(
            dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, [None], "default"))
        ),
        "the shape of the default of rate is not known",
    ),
    "a default of another shape": (
        with_arguments(dense_defaults=_defaults(lambda: tf.constant([1.0, 2.0, 3.0]))),
        "the default of rate has another shape",
    ),
    "a shape that is not known": (
        with_node(_set_shape()),
        "the shape of rate is not known",
    ),
    "a later size that is not known": (
        with_node(_set_shape(2, None)),
        "the shape of rate is not known",
    ),
    "rows filled up with two values": (
        with_arguments(
            dense_defaults=lambda: [tf.constant([], tf.int64), tf.zeros([2]), tf.constant(["", ""])]
        ),
        "rows of text are not filled up with one value",
    ),
    "strides without values": (
        with_node(_set_empty_strides),
        "rows of text are not filled up with one value",
    ),
    "shapes of another number": (
        with_node(_drop_shapes),
        "keys, dtypes and shapes are not of one number",
    ),
    "a GPU": (
        with_node(_set_device("/device:GPU:0")),
        "placed on /device:GPU:0; the fused ops run on CPU",
    ),
    "another process": (
        with_node(_set_device("/job:worker/replica:0/task:1/device:CPU:0")),
        "placed on /job:worker/replica:0/task:1/device:CPU:0, which may not know the fused ops",
    ),
}
"""What makes each graph, and the reason."""
TASKS = frozenset({"/job:localhost/replica:0/task:0"})


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    before = make()
    parse = next(node for node in before.node if node.op in OPS)
    result = replace(PASS, tasks=TASKS).apply(before)
    assert not result.modified
    (report,) = result.report.parsers
    assert report == ParserReport("parse", "", reason=reason, node="parse")
    assert not report.fused
    assert [parse.name in line for line in str(result.report).splitlines()][1:] == [True, False]


GOOD = {
    "keys that are constants": with_arguments(sparse_keys=lambda: tf.constant(["other"])),
    "a default that is fed, of a known shape": with_arguments(
        dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, [2], "default"))
    ),
    "no default of a known shape": with_arguments(
        dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, [0], "default"))
    ),
    "strides with values": with_arguments(dense_shapes=[[], [2], [None, 3]]),
    "this process": with_node(_set_device("/job:localhost/replica:0/task:0/device:CPU:0")),
    "a CPU": with_node(_set_device("/device:CPU:0")),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_nearly_refused(name: str) -> None:
    result = replace(PASS, tasks=TASKS).apply(GOOD[name]())
    (report,) = result.report.parsers
    assert report.fused, str(result.report)
    assert ops(result.graph_def)[PARSE_EXAMPLE] == 1


def test_another_dtype() -> None:
    before = build("ParseExampleV2")
    only(before, "ParseExampleV2").attr["sparse_types"].list.type[0] = types_pb2.DT_INT32
    (report,) = PASS.apply(before).report.parsers
    assert report.reason == "values of Examples have another dtype"


# Reports


def test_what_reports_say() -> None:
    result = PASS.apply(build("ParseExampleV2"))
    lines = str(result.report).splitlines()
    assert "  fused  parse (tf.Examples, 4 features)" in lines
    (found,) = json.loads(json.dumps(result.report.to_dict()))["parsers"]
    assert found == {
        "fused": True,
        "name": "parse",
        "function": "",
        "features": 4,
        "hashed": 0,
        "reason": None,
        "node": None,
        "fused_before": False,
        "served": True,
        "records": "tf.Examples",
    }
    again = str(PASS.apply(result.graph_def).report).splitlines()
    assert "  already fused  parse (tf.Examples, 4 features)" in again
    refused = str(PASS.apply(REFUSED["two features of one key"][0]()).report)
    assert refused.endswith("  stock  parse (tf.Examples)\n         two features have one key")


def test_what_no_signature_runs() -> None:
    before = build("ParseExampleV2")
    rewrite = FuseLookups(preserve=frozenset({"out0", "examples"}), fetched=frozenset({"examples"}))
    (report,) = rewrite.apply(before).report.parsers
    assert not report.served
    served = replace(rewrite, fetched=frozenset({"out0"}))
    (report,) = served.apply(before).report.parsers
    assert report.served
