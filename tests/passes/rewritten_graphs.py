"""Graphs after the pass, or what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.kernel_names import plain_name
from fusion.passes.lookup_pass import LookupPass
from fusion.passes.report.report import ColumnReport
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
ANCHOR = "embedding_lookup/embedding_lookup_sparse"
GATHER = f"{ANCHOR}/embedding_lookup"
PASS = FuseLookups(preserve=frozenset({"out", "initialize"}))


def nodes(graph_def: graph_pb2.GraphDef) -> dict[str, node_def_pb2.NodeDef]:
    return {node.name: node for node in graph_def.node}


def plainly_named(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with names that have no digests, which does not run any more."""
    plain = graph_pb2.GraphDef()
    plain.CopyFrom(graph_def)
    for node in plain.node:
        node.name, node.input[:] = plain_name(node.name), [*map(plain_name, node.input)]
    return plain


def only(graph_def: graph_pb2.GraphDef, op: str) -> node_def_pb2.NodeDef:
    (node,) = (node for node in graph_def.node if node.op == op)
    return node


def fused(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    result = PASS.apply(graph_def)
    assert result.report.fused_count == len(result.report.columns), str(result.report)
    assert result.modified
    return result.graph_def


def refused(graph_def: graph_pb2.GraphDef, rewrite: LookupPass = PASS) -> ColumnReport:
    """The one column's verdict, checked to leave the graph as it is."""
    before = graph_def.SerializeToString(deterministic=True)
    result = rewrite.apply(graph_def)
    (column,) = result.report.columns
    assert not column.fused
    assert not result.modified
    assert result.graph_def.SerializeToString(deterministic=True) == before
    assert result.report.nodes_before == result.report.nodes_after
    return column


def add(graph_def: graph_pb2.GraphDef, op: str, name: str, *inputs: str, **types: int) -> None:
    node = graph_def.node.add(name=name, op=op, input=inputs)
    for key, value in types.items():
        node.attr[key].type = value


def written_somewhere(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with an update of single rows of `table` in it, which nobody runs."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        handle = graph.get_tensor_by_name("table:0")
        rows = tf.zeros([1, stock.DIM])
        tf.raw_ops.ResourceScatterAdd(resource=handle, indices=[0], updates=rows, name="write")
        return graph.as_graph_def(add_shapes=True)


def build_with(edit: Callable[[Any, Any, Case], Any], case: Case | None = None) -> Any:
    """A graph whose `out` is what `edit(table, ids, case)` builds."""
    case = case or Case()
    with tf.Graph().as_default() as graph:
        table, ids = stock.make_table(case), stock.sparse_placeholder(case)
        tf.identity(edit(table, ids, case), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def to_sparse(matrix: tf.Tensor) -> tf.SparseTensor:
    """As feature columns do it."""
    indices = tf.where(tf.not_equal(matrix, 1))
    return tf.SparseTensor(indices, tf.gather_nd(matrix, indices), tf.shape(matrix, tf.int64))
