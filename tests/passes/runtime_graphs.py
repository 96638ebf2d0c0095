"""Graphs of all kinds that the stock target rewrites, with what to feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests import example_bytes
from tests import layer_graphs as layers
from tests import product_graphs as products
from tests.layer_graphs import Model, Table
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import to_sparse
from tests.passes.stock_graphs import Case
from tests.passes.test_stacked import fed, frozen
from tests.product_graphs import Part, Product

v1 = tf.compat.v1
LARGE_ROWS = 1 << 14
"""Of a table that is more than 64 KiB, of each dtype."""

Fed = tuple[graph_pb2.GraphDef, dict[str, Any]]

CASES = (
    Case(),
    Case(default_id=3),
    Case(fast=True, combiner="sum"),
    Case(combiner="sqrtn", ids=tf.int32),
    Case(table="constant", combiner="sum"),
    Case(table="ref", combiner="sqrtn", default_id=0),
    Case(dtype=tf.float16, combiner="sum"),
    Case(dtype=tf.bfloat16),
    Case(dtype=tf.float64, rank=3),
    Case(ragged=True),
    Case(ragged=True, combiner="sum", table="constant"),
    Case(weighted=True),
    Case(weighted=True, combiner="sqrtn", default_id=3),
    Case(weighted=True, dtype=tf.bfloat16, max_norm=0.7),
    Case(max_norm=0.7),
    Case(shards=3, strategy="mod"),
    Case(shards=3, max_norm=0.7, weighted=True),
)


def large(case: Case) -> graph_pb2.GraphDef:
    """A lookup in a table that is no small one."""
    with tf.Graph().as_default() as graph:
        rng = np.random.default_rng(0)
        found = rng.normal(size=(LARGE_ROWS, stock.DIM)).astype(case.dtype.as_numpy_dtype)
        if case.table == "constant":
            table = tf.constant(found)
        else:
            is_resource = case.table == "resource"
            table = v1.get_variable("table", initializer=found, use_resource=is_resource)
        tf.identity(stock.lookup(table, stock.sparse_placeholder(case), case), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def from_a_matrix(width: int, default_id: int | None = None) -> graph_pb2.GraphDef:
    """A lookup of the elements of a dense matrix."""
    with tf.Graph().as_default() as graph:
        case = Case(default_id=default_id)
        ids = to_sparse(v1.placeholder(tf.int64, [None, width], "matrix"))
        tf.identity(stock.lookup(stock.make_table(case), ids, case), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def stacked(*kinds: str) -> graph_pb2.GraphDef:
    graph_def = frozen(*((kind, 3) for kind in kinds))
    graph_def.node.add(name="initialize", op="NoOp")
    return graph_def


def _matrix(rows: int, width: int) -> dict[str, Any]:
    return {"matrix:0": np.random.default_rng(0).integers(-2, stock.ROWS, (rows, width))}


def _lookup(build: Callable[[Case], graph_pb2.GraphDef], case: Case) -> Fed:
    return build(case), stock.feeds(case)


def _layers(model: Model) -> Fed:
    return layers.build(model), layers.feeds(model)


def _products(product: Product) -> Fed:
    return products.build(product), products.feeds(product)


def _parsed(op: str) -> Fed:
    """A lookup of ids from Examples, which an op of TensorFlow 1 or 2 parses."""
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], "examples")
        ragged = ("ragged_keys", "ragged_value_types", "ragged_split_types")
        more: dict[str, Any] = dict.fromkeys(ragged, ())
        parsed = getattr(tf.raw_ops, op)(
            serialized=serialized,
            names=tf.constant([], tf.string),
            sparse_keys=["ids"],
            dense_keys=["weight"],
            dense_defaults=[tf.constant([1.0])],
            sparse_types=[tf.int64],
            dense_shapes=[[1]],
            **({**more, "num_sparse": 1} if op == "ParseExampleV2" else {}),
        )
        ids = tf.SparseTensor(
            parsed.sparse_indices[0], parsed.sparse_values[0], parsed.sparse_shapes[0]
        )
        rows = stock.lookup(stock.make_table(Case()), ids, Case())
        tf.multiply(rows, parsed.dense_values[0], name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        rows_of_ids = [example_bytes.of(ids=example_bytes.ints(range(n))) for n in range(5)]
        return graph.as_graph_def(), {"examples:0": np.array(rows_of_ids, object)}


def _parsed_sequences() -> Fed:
    """A lookup of ids of the context of SequenceExamples, with lists beside it."""
    with tf.Graph().as_default() as graph:
        context, lists, _ = tf.io.parse_sequence_example(
            v1.placeholder(tf.string, [None], "examples"),
            {"ids": tf.io.VarLenFeature(tf.int64)},
            {
                "steps": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
                "seen": tf.io.RaggedFeature(tf.int64),
            },
        )
        rows = stock.lookup(stock.make_table(Case()), context["ids"], Case())
        seen = tf.cast(tf.reduce_sum(lists["seen"].values.values), tf.float32)
        tf.add(rows, seen + tf.reduce_sum(lists["steps"]), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        examples = [
            example_bytes.sequence_of(
                {"ids": example_bytes.ints(range(n))},
                {"steps": [example_bytes.floats([n, 1])], "seen": [example_bytes.ints([n])] * n},
            )
            for n in range(5)
        ]
        return graph.as_graph_def(), {"examples:0": np.array(examples, object)}


_MANY = Model(tuple(Table(20 + k, 4, "constant") for k in range(16)))

GRAPHS: dict[str, Callable[[], Fed]] = {
    **{f"{case}": partial(_lookup, stock.build, case) for case in CASES},
    **{f"large {case}": partial(_lookup, large, case) for case in CASES if case.shards == 1},
    "a matrix": lambda: (from_a_matrix(3), _matrix(7, 3)),
    "a matrix, with a default": lambda: (from_a_matrix(3, 2), _matrix(7, 3)),
    "one id per row": lambda: (from_a_matrix(1), _matrix(7, 1)),
    "one id per row, with a default": lambda: (from_a_matrix(1, 2), _matrix(7, 1)),
    "stacked": lambda: (stacked("ids", "words", "numbers"), fed("ids", "words", "numbers")),
    "stacked gathers": lambda: _layers(_MANY),
    "stacked gathers from the end": lambda: _layers(replace(_MANY, wraps=True)),
    "padded ids": lambda: _layers(Model(shape=(4,), between="", bag="padded mean")),
    "one-hots": lambda: _products(Product((Part("vector", 70), Part("dense", 3), Part("column")))),
    "multi-hots": lambda: _products(Product((Part("max"), Part("binary", ids="int32")))),
    "counts": lambda: _products(Product((Part("count", 90), Part("sum", 70)), kernel="constant")),
}

FUSED: dict[str, Callable[[], Fed]] = {
    "sequences": lambda: _layers(replace(_MANY, shape=(5,), joins=(("stack", 1),), between="")),
    **{
        f"{bag} of {kind}": partial(
            _layers, Model((Table(20, 4, kind), Table(9, 4, kind)), (6,), between="", bag=bag)
        )
        for bag in ("sum", "selected mean", "lengths", "weighted sqrtn", "ragged mean", "max")
        for kind in ("resource", "constant")
    },
    "Examples": lambda: _parsed("ParseExampleV2"),
    "Examples, TensorFlow 1": lambda: _parsed("ParseExample"),
    "SequenceExamples": _parsed_sequences,
}
"""Those that only the other target rewrites, whose ops become stock ones again."""


@cache
def made(name: str) -> Fed:
    """A graph and a feed, which nobody may change."""
    return (GRAPHS | FUSED)[name]()
