"""Graphs with ops that parse tf.Examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.fuse_lookups import FuseLookups
from tests.example_bytes import floats, ints, of, strings
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
KEEP = frozenset({"out", "initialize"})
PASS = FuseLookups(preserve=KEEP)
OPS = ("ParseExample", "ParseExampleV2", "ParseSingleExample")

ROWS = (
    of(id=ints([3]), rate=floats([0.5, 1.5]), bag=ints([1, 2, 3]), text=strings([b"one"])),
    of(id=ints([5]), bag=ints([])),
    of(id=ints([0]), rate=floats([1, 2]), bag=ints([19]), text=strings([b"two", b"three"])),
)


def parser(op: str, serialized: tf.Tensor, name: str = "parse", **changes: Any) -> dict[str, Any]:
    """Builds one of the stock ops, for features of some forms; its outputs."""
    arguments: dict[str, Any] = {
        "sparse_keys": ["bag"],
        "dense_keys": ["id", "rate"],
        "dense_defaults": [tf.constant([], tf.int64), tf.constant([7.0, 8.0])],
        "sparse_types": [tf.int64],
        "dense_shapes": [[], [2]],
        "name": name,
    }
    if op != "ParseSingleExample":
        arguments["names"] = tf.constant([], tf.string)
        arguments["dense_keys"] = ["id", "rate", "text"]
        arguments["dense_defaults"] += [tf.constant("")]
        arguments["dense_shapes"] = [[], [2], [None]]
    if op == "ParseSingleExample":
        arguments["num_sparse"] = 1
    if op == "ParseExampleV2":
        arguments |= {
            "num_sparse": 1,
            "ragged_keys": [],
            "ragged_value_types": [],
            "ragged_split_types": [],
        }
    parsed = getattr(tf.raw_ops, op)(serialized=serialized, **{**arguments, **changes})
    dense = dict(zip(arguments["dense_keys"], parsed.dense_values, strict=False))
    sparse = (parsed.sparse_indices[0], parsed.sparse_values[0], parsed.sparse_shapes[0])
    return {"bag": tf.SparseTensor(*sparse), **dense}


def flat(parsed: dict[str, Any]) -> list[tf.Tensor]:
    """All tensors of a parser."""
    return tf.nest.flatten(parsed, expand_composites=True)


def build(op: str, **changes: Any) -> graph_pb2.GraphDef:
    """A graph whose outputs, `out0` and so on, are those of a stock op."""
    with tf.Graph().as_default() as graph:
        shape = [] if op == "ParseSingleExample" else [None]
        for index, one in enumerate(
            flat(parser(op, v1.placeholder(tf.string, shape, "examples"), **changes))
        ):
            tf.identity(one, f"out{index}")
        tf.no_op("initialize")
        return graph.as_graph_def()


def ops(graph_def: graph_pb2.GraphDef) -> Counter[str]:
    found = Counter(node.op for node in graph_def.node)
    for function in graph_def.library.function:
        found.update(node.op for node in function.node_def)
    return found


def outputs(graph_def: graph_pb2.GraphDef, op: str) -> list[Any]:
    """What a graph gives."""
    count = sum(node.name.startswith("out") for node in graph_def.node)
    fed = np.array(ROWS[0], object) if op == "ParseSingleExample" else np.array(ROWS, object)
    fetches = [f"out{index}:0" for index in range(count)]
    return stock.run(graph_def, {"examples:0": fed}, fetches, optimize=False)


def only(graph_def: graph_pb2.GraphDef, op: str) -> node_def_pb2.NodeDef:
    (node,) = (node for node in graph_def.node if node.op == op)
    return node


def assert_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def embedded(serialized: tf.Tensor, table: Any) -> tf.Tensor:
    parsed = parser("ParseExampleV2", serialized)
    bag = tf.nn.safe_embedding_lookup_sparse(table, parsed["bag"], combiner="sum")
    return tf.concat([bag, tf.nn.embedding_lookup(table, parsed["id"])], 1)


def with_lookups() -> graph_pb2.GraphDef:
    """A graph of a parser and of two lookups behind it."""
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], "examples")
        table = tf.constant(stock.table_values(), name="table")
        tf.identity(embedded(serialized, table), "out")
        tf.no_op("initialize")
        return graph.as_graph_def(add_shapes=True)
