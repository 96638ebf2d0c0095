"""Graphs with columns, and what the planner makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report.report import FusionResult
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
GROUP, SINGLE = "GroupedEmbeddingLookup", "FusedEmbeddingLookup"
POST = "FusedEmbeddingSparsePostLookUpV2"
PASS = FuseLookups(preserve=frozenset({"out", "initialize"}))


def graph_of(build: Callable[[], Any]) -> graph_pb2.GraphDef:
    """A graph whose `out` is what `build` returns."""
    with tf.Graph().as_default() as graph:
        tf.identity(build(), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def table(name: str, dim: int = stock.DIM, dtype: Any = tf.float32) -> Any:
    seed = sum(name.encode())
    return v1.get_variable(
        name, initializer=stock.table_values(dtype, seed, dim)[1:], use_resource=True
    )


def column(name: str, source: Any = None, case: Case | None = None, **kwargs: Any) -> tf.Tensor:
    """A lookup of ids of their own, `name/...`, in a table of their own."""
    case = case or Case()
    source = table(f"{name}_table", dtype=case.dtype) if source is None else source
    with tf.name_scope(name):
        return stock.lookup(source, stock.sparse_placeholder(case), case, **kwargs)


def feeds(*names: str, case: Case | None = None, batch: int = 7) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed, name in enumerate(names):
        fed = stock.feeds(case or Case(), seed + 1, batch, f"{name}/ids")
        fed[f"{name}/ids/values:0"] = fed[f"{name}/ids/values:0"] % (stock.ROWS + 1) - 2
        found |= fed
    return found


def forms(result: FusionResult) -> list[str | None]:
    return [column.form for column in result.report.columns]


def named(graph_def: graph_pb2.GraphDef) -> dict[str, node_def_pb2.NodeDef]:
    functions = (function.node_def for function in graph_def.library.function)
    return {node.name: node for body in (graph_def.node, *functions) for node in body}


def ops(graph_def: graph_pb2.GraphDef) -> list[str]:
    return [node.op for node in named(graph_def).values()]


def checked(
    graph_def: graph_pb2.GraphDef,
    feed: dict[str, Any],
    expected: list[str | None],
    rewrite: FuseLookups = PASS,
    exact: bool = True,
) -> graph_pb2.GraphDef:
    """The rewritten graph, after a look at its forms and numbers, with TensorFlow's passes too."""
    compare = (
        np.testing.assert_array_equal if exact else partial(np.testing.assert_allclose, rtol=1e-5)
    )
    result = rewrite.apply(graph_def)
    assert forms(result) == expected, str(result.report)
    assert rewrite.explain(graph_def).columns == result.report.columns
    assert not rewrite.apply(result.graph_def).modified
    # TensorFlow's own optimizer lets stock lookups of resources read before they should.
    (stocks,) = stock.run(graph_def, feed, optimize=False)
    assert np.isfinite(stocks).all()
    assert stocks.any()
    for optimize in (False, True):
        compare(stock.run(result.graph_def, feed, optimize=optimize)[0], stocks)
    return result.graph_def


# Groups


def dense(ids: tf.Tensor, source: Any) -> tf.Tensor:
    """All elements of a matrix of one column, as bucketized columns make them."""
    batch = tf.shape(ids)[0]
    rows = tf.reshape(tf.tile(tf.expand_dims(tf.range(batch), 1), [1, ids.shape[1]]), [-1])
    columns = tf.tile(tf.range(ids.shape[1]), [batch])
    values = tf.reshape(ids, [-1]) + 4 * columns
    indices = tf.cast(tf.transpose(tf.stack([rows, columns])), tf.int64)
    shape = tf.cast(tf.stack([batch, ids.shape[1]]), tf.int64)
    return stock.lookup(source, tf.SparseTensor(indices, values, shape), Case(ids=tf.int32))
