"""What fusion costs while TensorFlow optimizes graphs, in those that have embeddings and others."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from benchmarks.case import Key, Row
from benchmarks.measure import in_turns, single
from fusion.passes.fuse_lookups import FuseLookups
from fusion.running import grappler
from fusion.runtime.optimizer import plugin, prefilter

v1 = tf.compat.v1


class _Item(plugin.Item):
    """A graph as TensorFlow hands it over, with `out` to be preserved."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def thread(self) -> int:
        return threading.get_ident()

    def graph_def(self) -> bytes:
        return self._data

    def when_abandoned(self, undo: Callable[[], None]) -> None:
        """It is waited for."""

    def nodes_to_preserve(self) -> frozenset[str]:
        return frozenset({"out"})

    def fetches(self) -> frozenset[str]:
        return self.nodes_to_preserve()


def measure(columns: int, layers: int, repeats: int) -> Iterator[Row]:
    """Yields the medians of `repeats`: of a graph without embeddings, and of so many columns."""
    with fusion.fused():
        yield _without_embeddings(_dense_graph(layers), repeats)
        yield _with_columns(_columns_graph(columns), repeats)


def _without_embeddings(graph_def: graph_pb2.GraphDef, repeats: int) -> Row:
    data = graph_def.SerializeToString()
    taken = _median(lambda: prefilter.meets(grappler.LOOKUPS, data), repeats) * 1e3
    megabytes = len(data) / 1e6
    values = {"MB": megabytes, "ms": taken, "ms per MB": taken / megabytes}
    key: Key = {"graph": "without embeddings", "nodes": len(graph_def.node)}
    return Row(key, values, most={"ms per MB": 0.15})


def _with_columns(graph_def: graph_pb2.GraphDef, repeats: int) -> Row:
    data = graph_def.SerializeToString()
    item = _Item(data)
    result = FuseLookups(preserve=item.nodes_to_preserve()).apply(graph_def)
    if not all(column.fused for column in result.report.columns):
        raise RuntimeError(f"not all of the columns are fused:\n{result.report}")
    values = {
        "nodes after": len(result.graph_def.node),
        "parsing, s": _median(lambda: graph_pb2.GraphDef.FromString(data), repeats),
        "in all, s": _median(lambda: grappler._optimize(item), repeats),
    }
    key = {"columns": result.report.fused_count, "nodes": len(graph_def.node)}
    return Row(key, values, most={"in all, s": 2.0})


def _median(call: Callable[[], object], repeats: int) -> float:
    """Seconds per call."""
    return statistics.median(in_turns({"": single(call)}, 0.0, repeats)[""])


def _dense_graph(layers: int) -> graph_pb2.GraphDef:
    """A deep network without an embedding, five nodes a layer."""
    with tf.Graph().as_default() as graph:
        value = v1.placeholder(tf.float32, [None, 8])
        for _ in range(layers):
            value = tf.nn.relu(tf.matmul(value, tf.ones([8, 8])) + 1.0)
        tf.identity(value, name="out")
        return graph.as_graph_def()


def _columns_graph(count: int) -> graph_pb2.GraphDef:
    """That many stock lookups side by side: 60 nodes each."""
    with tf.Graph().as_default() as graph:
        found = []
        for place in range(count):
            table = v1.get_variable(
                f"table{place}", [100, 8], initializer=v1.zeros_initializer(), use_resource=True
            )
            ids = v1.sparse_placeholder(tf.int64, [None, None])
            found.append(v1.nn.safe_embedding_lookup_sparse(table, ids))
        tf.concat(found, 1, name="out")
        return graph.as_graph_def()
