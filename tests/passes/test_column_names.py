"""What messages of rewritten graphs call columns: their lookups, and their tables if known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.lower_lookups import LowerLookups
from tests.passes.planned_graphs import GROUP, PASS, SINGLE, column, graph_of, named, table
from tests.passes.rewritten_graphs import PASS as PASS_OUT

v1, fc = tf.compat.v1, tf.feature_column


def names_of(graph_def: graph_pb2.GraphDef) -> list[str]:
    (node,) = (node for node in named(graph_def).values() if node.op == GROUP)
    return [text.decode() for text in node.attr["column_names"].list.s]


def run(graph_def: graph_pb2.GraphDef, feeds: dict[str, Any]) -> Any:
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run("out:0", feeds)


def frozen(*keys: str) -> graph_pb2.GraphDef:
    """A frozen `input_layer` with tables of 6 rows, for one id per row."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        features = {key: v1.placeholder(tf.int64, [None, 1], key) for key in keys}
        kinds = [fc.categorical_column_with_identity(key, 6) for key in keys]
        columns = [fc.embedding_column(kind, 3) for kind in kinds]
        tf.identity(v1.feature_column.input_layer(features, columns), name="out")
        session.run(v1.global_variables_initializer())
        return v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out"])


def test_columns_of_a_group_are_called_by_lookup_and_table() -> None:
    def build() -> Any:
        shared = table("shared")
        matrix = v1.placeholder(tf.float32, [None, 2], "given")
        parts = [column("one", shared), matrix, column("two", shared), column("three")]
        return tf.concat(parts, 1)

    result = PASS.apply(graph_of(build))
    assert names_of(result.graph_def) == [
        "one/embedding_lookup of table shared",
        "",
        "two/embedding_lookup of table shared",
        "three/embedding_lookup of table three_table",
    ]


def test_a_column_alone_has_a_name() -> None:
    nodes = named(PASS.apply(graph_of(lambda: column("one"))).graph_def)
    (node,) = (node for node in nodes.values() if node.op == SINGLE)
    assert node.attr["column_name"].s == b"one/embedding_lookup of table one_table"


def test_a_function_names_the_tables_that_its_callers_give() -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [tf.Variable(tf.ones([rows, 2]), name=f"table{rows}") for rows in (3, 4)]

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
        def look_up(self, ids: Any) -> Any:
            sparse = tf.sparse.from_dense(ids)
            looked_up = [tf.nn.safe_embedding_lookup_sparse(one, sparse) for one in self.tables]
            return tf.concat(looked_up, 1)

    model = Model()
    function = fusion.fuse_function(model.look_up.get_concrete_function())
    assert names_of(function.graph.as_graph_def()) == [
        "embedding_lookup of table table3",
        "embedding_lookup_1 of table table4",
    ]
    text = r"column 0 \(embedding_lookup of table table3\): .* = 3 .*in row 1 of the batch"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        function(tf.constant([[1], [3]], tf.int64))


def test_names_do_not_keep_columns_from_sharing_an_op() -> None:
    # Two lookups of the same ids, which are trained: one op finds their distinct ids.
    def build() -> Any:
        ids = v1.sparse_placeholder(tf.int64, [None, None], "ids")
        tables = [table("a"), table("b")]
        looked_up = [tf.nn.safe_embedding_lookup_sparse(one, ids) for one in tables]
        # Not side by side: each has its own op behind the gather.
        gradients = tf.gradients([tf.reduce_sum(one) for one in looked_up], tables)
        return tf.add_n([tf.convert_to_tensor(one) for one in gradients])

    nodes = named(PASS.apply(graph_of(build)).graph_def).values()
    names = [node.attr["column_names"].list.s for node in nodes if "PreLookUp" in node.op]
    assert [list(name) for name in names] == [[b"embedding_lookup of table a"]]


def test_stock_ops_made_of_a_group_are_named_after_its_columns() -> None:
    graph_def = graph_of(lambda: tf.concat([column("one"), column("two")], 1))
    fused = PASS.apply(graph_def).graph_def
    again = LowerLookups(PASS.preserve).apply(fused).graph_def
    assert any(name.startswith("two/embedding_lookup/") for name in named(again))
    hostile = graph_pb2.GraphDef()
    hostile.CopyFrom(fused)
    for node in hostile.node:
        if node.op == GROUP:
            node.attr["column_names"].list.s[:] = [b"a\x1b[31m b", b"\xff"]
    again = LowerLookups(PASS.preserve).apply(hostile).graph_def
    assert not any("\x1b" in name for name in named(again))
    with tf.Graph().as_default():
        tf.import_graph_def(again, name="")


def test_of_a_stack_the_position_tells_row_and_column() -> None:
    before = frozen("C1", "C2", "C3")
    after = LowerLookups(preserve=frozenset({"out"})).apply(before)
    assert {column.form for column in after.report.columns} == {"stacked"}
    feeds = {f"C{k}:0": np.array([[0], [1]]) for k in (1, 2, 3)}
    feeds["C2:0"] = np.array([[0], [7]])
    # Row 1, column 1 of 3; the stack has 18 rows, and nothing is read of it.
    text = r"indices\[4\] = 18 is not in \[0, 18\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(after.graph_def, feeds)
    grouped = PASS_OUT.apply(before).graph_def
    text = r"column 1 \(input_layer/C2_embedding.*\): indices\[1\] = 7 is not in \[0, 6\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(grouped, feeds)
