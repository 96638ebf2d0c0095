"""Graphs that update tables, as optimizers leave them or nearly so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 9, 3
Handles = list[tf.Tensor]
Body = Callable[[Handles, tf.Tensor], Any]


def build(body: Body, dtype: Any = tf.float32, count: int = 1) -> graph_pb2.GraphDef:
    """A graph whose `out` is the tables after what `body` does to them, given their handles."""
    with tf.Graph().as_default() as graph:
        handles = [
            raw.VarHandleOp(dtype=dtype, shape=[ROWS, DIM], shared_name=f"t{n}", name=f"t{n}")
            for n in range(count)
        ]
        ids = v1.placeholder(tf.int64, [None], name="ids")
        made = body(handles, ids)
        with tf.control_dependencies(tf.nest.flatten(made)):
            values = [raw.ReadVariableOp(resource=handle, dtype=dtype) for handle in handles]
            tf.stack([tf.cast(value, tf.float64) for value in values], name="out")
        return graph.as_graph_def()


def run(graph_def: graph_pb2.GraphDef, feed: Mapping[str, Any], fetch: str = "out") -> Any:
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        for number, node in enumerate(graph_def.node):
            if node.op == "VarHandleOp":
                dtype = tf.as_dtype(node.attr["dtype"].type)
                sizes = [dim.size for dim in node.attr["shape"].shape.dim]
                values = np.abs(np.random.default_rng(number).normal(size=sizes))
                handle = graph.get_tensor_by_name(f"{node.name}:0")
                session.run(raw.AssignVariableOp(resource=handle, value=tf.constant(values, dtype)))
        return session.run(f"{fetch}:0", {f"{name}:0": value for name, value in feed.items()})


def rows_of(ids: tf.Tensor, dtype: Any = tf.float32) -> tf.Tensor:
    """Some number for each element of a row of each id."""
    numbers = tf.cast(ids, tf.float64)[:, None] + tf.range(DIM, dtype=tf.float64) / 7
    return tf.reshape(tf.cast(numbers, dtype), [-1, DIM])


def read(handle: tf.Tensor, dtype: Any = tf.float32) -> tf.Tensor:
    return raw.ReadVariableOp(resource=handle, dtype=dtype)


def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return raw.AssignVariableOp(resource=handle, value=value)


def subtract(handles: Handles, ids: tf.Tensor, dtype: Any = tf.float32) -> list[tf.Operation]:
    updates = rows_of(ids, dtype) * tf.cast(0.3, dtype)
    return [raw.ResourceScatterSub(resource=one, indices=ids, updates=updates) for one in handles]
