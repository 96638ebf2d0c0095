"""Graphs from which signatures run a part: training ops beside it restrict nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.report.report import FusionResult

v1 = tf.compat.v1
PRESERVE = frozenset({"out", "train", "initialize", "loss"})
TRAINED = FuseLookups(preserve=PRESERVE)
SERVED = FuseLookups(preserve=PRESERVE, fetched=frozenset({"out"}))
ROWS, DIM = 20, 3

Lookup = Callable[[tf.Variable, tf.Tensor], tf.Tensor]


def bags(table: tf.Variable, ids: tf.Tensor, combiner: str = "mean") -> tf.Tensor:
    sparse = tf.sparse.from_dense(ids)
    return tf.nn.safe_embedding_lookup_sparse(table, sparse, combiner=combiner)


def rows(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.nn.embedding_lookup(table, ids[:, 0])


LOOKUPS: dict[str, Lookup] = {"mean": bags, "sum": partial(bags, combiner="sum"), "rows": rows}


def build(lookup: Lookup, *, resource: bool = True, extra: bool = False) -> graph_pb2.GraphDef:
    """Two columns side by side, and a step that trains them; `extra`: a third for the loss."""
    with tf.Graph().as_default() as graph:
        columns = []
        for number in range(2 + extra):
            ids = v1.placeholder(tf.int64, [None, 2], name=f"ids{number}")
            value = tf.random.stateless_normal([ROWS, DIM], [number, 7])
            table = v1.get_variable(f"table{number}", initializer=value, use_resource=resource)
            columns.append(lookup(table, ids))
        out = tf.concat(columns[:2], 1, name="out")
        loss = tf.add_n([tf.reduce_sum(out**2), *map(tf.reduce_sum, columns[2:])], name="loss")
        v1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def run(graph_def: graph_pb2.GraphDef) -> list[np.ndarray]:
    """Results of a Session that serves, trains, and does both at once, in turn."""
    count = sum(node.op == "Placeholder" for node in graph_def.node)
    found = []
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph) as session:
            session.run("initialize")
            for seed in range(3):
                ids = np.random.default_rng(seed).integers(0, ROWS, [count, 5, 2])
                feed = {f"ids{number}:0": ids[number] for number in range(count)}
                serving = {name: feed[name] for name in ("ids0:0", "ids1:0")}
                found.append(session.run("out:0", serving))
                session.run("train", feed)
                found += session.run(["out:0", "loss:0", "train"], feed)[:2]
                found.append(session.run("out:0", serving))
    return found


def served_ops(result: FusionResult) -> Counter[str]:
    view = GraphView(result.graph_def.node, GraphView.of_graph(result.graph_def).signatures)
    view.fetched = frozenset({"out"})
    return Counter(view.op(name) for name in view.nodes if view.is_served(name))


def assert_same(one: graph_pb2.GraphDef, other: graph_pb2.GraphDef) -> None:
    for a, b in zip(run(one), run(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
@pytest.mark.parametrize("kind", LOOKUPS)
def test_training_beside_a_signature_restricts_nothing(kind: str, resource: bool) -> None:
    graph_def = build(LOOKUPS[kind], resource=resource)
    result = SERVED.apply(graph_def)
    assert [(column.form, column.reason) for column in result.report.columns] == [
        ("grouped", None)
    ] * 2
    ops = served_ops(result)
    assert ops["GroupedEmbeddingLookup"] == 1
    assert not ops["Unique"] + ops["ResourceGather"] + ops["SparseSegmentMean"]
    assert_same(graph_def, result.graph_def)
    assert not SERVED.apply(result.graph_def).modified


def test_a_signature_that_trains_keeps_what_its_gradient_reads() -> None:
    graph_def = build(bags)
    training = FuseLookups(preserve=PRESERVE, fetched=frozenset({"out", "train"}))
    result = training.apply(graph_def)
    assert result.graph_def == TRAINED.apply(graph_def).graph_def
    assert {column.form for column in result.report.columns} == {"forward"}
    assert not result.report.others


def test_lookups_that_only_training_runs_are_others() -> None:
    graph_def = build(bags, extra=True)
    report = SERVED.apply(graph_def).report
    assert {column.name for column in report.columns} == {"table0", "table1"}
    (other,) = report.others
    assert (other.name, other.reason) == ("table2", "no signature runs it")
    assert "  1 other lookup that no signature runs: 0 fused" in str(report).splitlines()
    found = report.to_dict()
    assert (found["fused"], found["total"]) == (2, 2)
    assert [column["name"] for column in found["others"]] == ["table2"]
    assert_same(graph_def, SERVED.apply(graph_def).graph_def)


def test_without_a_lookup_in_a_signature_all_count() -> None:
    only_loss = FuseLookups(preserve=PRESERVE, fetched=frozenset({"initialize"}))
    report = only_loss.explain(build(bags))
    assert len(report.columns) == 2
    assert not report.others


def test_a_table_that_changes_behind_the_gather_alone_is_read_in_time() -> None:
    """The fused op would read rows that stock has read before they change."""
    with tf.Graph().as_default() as graph:
        columns = []
        for number in range(2):
            ids = v1.placeholder(tf.int64, [None, 2], name=f"ids{number}")
            table = v1.get_variable(f"table{number}", initializer=tf.ones([ROWS, DIM]))
            columns.append(bags(table, ids))
        (gather, _) = (op for op in graph.get_operations() if op.type == "ResourceGather")
        with tf.control_dependencies([gather]):
            first = v1.global_variables()[0]
            v1.scatter_update(first, [0], tf.zeros([1, DIM]))
        tf.concat(columns, 1, name="out")
        graph_def = graph.as_graph_def(add_shapes=True)
    report = SERVED.apply(graph_def).report
    forms = {column.name: column.form for column in report.columns}
    assert forms["table0"] == "split"
    assert forms["table1"] == "single"
