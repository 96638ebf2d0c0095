"""`fuse_graph`: what keeps its name and value, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

import fusion
from fusion.running.graphs import final_nodes
from fusion.schema.names import OP_NAMES
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
CASE = stock.Case()
INSIDE = "embedding_lookup/embedding_lookup_sparse"
FUSED_OP = "FusedEmbeddingLookup"


@pytest.fixture(scope="module")
def graph() -> graph_pb2.GraphDef:
    return stock.build(CASE)


def ops(graph_def: graph_pb2.GraphDef) -> set[str]:
    library = (node.op for f in graph_def.library.function for node in f.node_def)
    return {*(node.op for node in graph_def.node), *library}


@pytest.mark.parametrize("outputs", [None, ["out"], ["out:0", "^initialize"], iter(["out"]), []])
@pytest.mark.parametrize("table", ["resource", "ref", "constant"])
def test_values_stay(table: str, outputs: Any) -> None:
    case = stock.Case(table=table)
    before = stock.build(case)
    result = fusion.fuse_graph(before, outputs)
    assert result.modified
    assert FUSED_OP in ops(result.graph_def)
    assert "SparseSegmentMean" not in ops(result.graph_def)
    assert result.report.nodes_after == len(result.graph_def.node) < len(before.node)
    feed = stock.feeds(case)
    np.testing.assert_array_equal(
        stock.run(result.graph_def, feed), stock.run(before, feed), strict=True
    )


def test_fused_lookups_become_stock_ops_again(graph: graph_pb2.GraphDef) -> None:
    fused = fusion.fuse_graph(graph, ["out"]).graph_def
    lowered = fusion.fuse_graph(fused, ["out"], target="stock").graph_def
    assert not ops(lowered) & {*OP_NAMES}
    feed = stock.feeds(CASE)
    np.testing.assert_array_equal(stock.run(lowered, feed), stock.run(graph, feed), strict=True)


def test_what_cannot_become_stock_ops_is_an_error(graph: graph_pb2.GraphDef) -> None:
    fused = fusion.fuse_graph(graph, ["out"]).graph_def
    (node,) = (node for node in fused.node if node.op == FUSED_OP)
    node.attr["row_count"].s = b"last_row"
    message = rf"^fuse_graph: target 'stock': {node.name} \({FUSED_OP}\) cannot .*: empty rows"
    with pytest.raises(ValueError, match=message):
        fusion.fuse_graph(fused, ["out"], target="stock")


def test_a_frozen_graph_is_fused() -> None:
    def frozen(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
        with tf.Graph().as_default() as g, v1.Session(graph=g) as session:
            tf.import_graph_def(graph_def, name="")
            session.run("initialize")
            convert = v1.graph_util.convert_variables_to_constants
            return convert(session, graph_def, ["out"])

    before = frozen(stock.build(stock.Case(table="ref")))
    after = fusion.fuse_graph(before, ["out"]).graph_def
    assert {"VariableV2", "VarHandleOp"} & ops(before) == set()
    assert FUSED_OP in ops(after)
    with tf.Graph().as_default() as g, v1.Session(graph=g) as session:
        feed = stock.feeds(CASE)
        tf.import_graph_def(before, name="a")
        tf.import_graph_def(after, name="b")
        feeds = {f"{side}/{key}": v for side in "ab" for key, v in feed.items()}
        present = {k: v for k, v in feeds.items() if v1.get_default_graph() and _has(g, k)}
        a, b = session.run(["a/out:0", "b/out:0"], present)
    np.testing.assert_array_equal(a, b)


def _has(graph: tf.Graph, tensor: str) -> bool:
    return tensor.partition(":")[0] in {op.name for op in graph.get_operations()}


def test_functions_are_fused_and_their_tables_named() -> None:
    t = tf.Variable(tf.zeros([20, 6]), name="items")
    spec = tf.SparseTensorSpec([None, None], tf.int64)
    inner = tf.function(
        lambda ids: tf.nn.safe_embedding_lookup_sparse(t, ids), input_signature=[spec]
    )
    with tf.Graph().as_default() as g:
        with tf.init_scope():
            function = inner.get_concrete_function()
        table = v1.get_variable("items", [20, 6], use_resource=True)
        ids = v1.sparse_placeholder(tf.int64, [None, None])
        function._call_flat([ids.indices, ids.values, ids.dense_shape], [table.handle])
    result = fusion.fuse_graph(g.as_graph_def())
    (column,) = result.report.columns
    assert column.fused
    assert column.name == "items"
    assert column.function == function.name.decode()
    assert FUSED_OP in ops(result.graph_def)


def test_the_argument_is_not_changed_and_the_result_is_the_same_each_time(
    graph: graph_pb2.GraphDef,
) -> None:
    before = graph.SerializeToString(deterministic=True)
    first, second = (fusion.fuse_graph(graph) for _ in range(2))
    assert graph.SerializeToString(deterministic=True) == before
    assert first.graph_def is not second.graph_def
    assert first == second


def test_fusing_twice_changes_nothing_more(graph: graph_pb2.GraphDef) -> None:
    once = fusion.fuse_graph(graph).graph_def
    again = fusion.fuse_graph(once)
    assert again.graph_def is once
    assert all(column.fused_before for column in again.report.columns)


def test_a_graph_without_lookups_is_returned() -> None:
    with tf.Graph().as_default() as g:
        v1.placeholder(tf.float32) + 1.0
    graph_def = g.as_graph_def()
    result = fusion.fuse_graph(graph_def)
    assert result.graph_def is graph_def
    assert not result.modified
    assert fusion.fuse_graph(graph_pb2.GraphDef()).report.nodes_before == 0


# Outputs


@pytest.mark.parametrize("name", [INSIDE, f"{INSIDE}:0", f"^{INSIDE}"])
def test_a_value_inside_a_lookup_is_kept_when_named(name: str, graph: graph_pb2.GraphDef) -> None:
    result = fusion.fuse_graph(graph, ["out", name])
    assert result.graph_def is graph
    (column,) = result.report.columns
    assert "named outside the graph" in str(column.reason)
    assert column.node == INSIDE


def test_by_default_what_nobody_reads_is_kept(graph: graph_pb2.GraphDef) -> None:
    assert final_nodes(graph) >= {"out", "initialize"}
    assert not any(name.startswith("embedding_lookup") for name in final_nodes(graph))
    extended = graph_pb2.GraphDef()
    extended.CopyFrom(graph)
    peek = extended.node.add(name="peek", op="Identity", input=[INSIDE])
    peek.attr["T"].type = tf.float32.as_datatype_enum
    assert final_nodes(extended) == final_nodes(graph) | {"peek"}
    assert not fusion.fuse_graph(extended).modified
    # It is read by a node that stays, whoever names what.
    assert not fusion.fuse_graph(extended, []).modified


def test_a_final_node_that_is_the_result_itself_keeps_its_name() -> None:
    with tf.Graph().as_default() as g:
        rows = stock.lookup(stock.make_table(CASE), stock.sparse_placeholder(CASE), CASE)
        name = rows.op.name
        tf.group(v1.global_variables_initializer(), name="initialize")
    before = g.as_graph_def()
    after = fusion.fuse_graph(before).graph_def
    (node,) = (node for node in after.node if node.name == name)
    assert node.op == FUSED_OP
    feed = stock.feeds(CASE)
    np.testing.assert_array_equal(
        stock.run(after, feed, [f"{name}:0"]), stock.run(before, feed, [f"{name}:0"])
    )


# Arguments


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (["out", "nowhere"], ValueError, "outputs: the graph has no node 'nowhere'"),
        (["out:1"], ValueError, r"node 'out' \(Identity\) has no output 'out:1'"),
        (["out:x"], ValueError, "has no output 'out:x'"),
        (["out:-1"], ValueError, "has no output 'out:-1'"),
        (["out:"], ValueError, "has no output 'out:'"),
        (["initialize:0"], ValueError, r"'initialize' \(NoOp\) has no output"),
        ([""], ValueError, "the graph has no node ''"),
        ("out", TypeError, "outputs must be an iterable of names of nodes or tensors, got str"),
        (b"out", TypeError, "got bytes"),
        (7, TypeError, "got int 7"),
        ([b"out"], TypeError, "got bytes b'out'"),
    ],
)
def test_outputs_that_make_no_sense(
    outputs: Any, error: type[Exception], message: str, graph: graph_pb2.GraphDef
) -> None:
    with pytest.raises(error, match=message):
        fusion.fuse_graph(graph, outputs)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (tf.Graph(), "graph_def must be a GraphDef, got Graph .*; pass its as_graph_def"),
        (meta_graph_pb2.MetaGraphDef(), "got MetaGraphDef .*; pass its graph_def"),
        (b"", "got bytes b''$"),
        ("model.pb", "got str 'model.pb'$"),
        (None, "got NoneType None$"),
    ],
)
def test_other_arguments_are_refused(argument: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fusion.fuse_graph(argument)


def test_a_damaged_graph_is_a_value_error(graph: graph_pb2.GraphDef) -> None:
    for damage in ("inputs", "constants", "names"):
        broken = graph_pb2.GraphDef()
        broken.CopyFrom(graph)
        for node in broken.node:
            if damage == "inputs" and node.op.startswith("Sparse"):
                del node.input[1:]
            elif damage == "constants" and node.op == "Const":
                node.attr["value"].tensor.tensor_shape.dim.add().size = 7
            elif damage == "names":
                node.input[:] = [f"{text}_" for text in node.input]
        try:
            result = fusion.fuse_graph(broken)
        except ValueError as error:
            assert "graph_def makes no sense" in str(error)  # noqa: PT017
        else:
            assert not result.modified
