"""Lookups beside each other, in functions and in loops; and odd graphs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.kernel_names import plain_name
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import (
    ANCHOR,
    PASS,
    add,
    build_with,
    fused,
    nodes,
    only,
    refused,
    written_somewhere,
)
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1


def test_inputs_of_the_lookup_may_be_used_by_others() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "spy", "embedding_lookup/GreaterEqual", T=10)
    assert "embedding_lookup/GreaterEqual" in nodes(fused(graph_def))


def test_nodes_that_were_dead_before_stay() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "dangling", "ids/values", T=9)
    assert "dangling" in nodes(fused(graph_def))


def _with_gradient(table: Any, ids: Any, case: Case) -> Any:
    result = stock.lookup(table, ids, case)
    of_rows = tf.gradients(result, table.handle)[0].values
    return result + tf.cast(tf.reduce_sum(of_rows), result.dtype)


def test_a_gradient_is_fused_with_its_lookup() -> None:
    graph_def = build_with(_with_gradient)
    for variant in (graph_def, stock.optimized(graph_def)):
        after = fused(variant)
        kinds = Counter(node.op for node in after.node)
        assert kinds["GroupedEmbeddingPreLookUp"] == kinds["GroupedEmbeddingPostLookUp"] == 1
        assert kinds["GroupedEmbeddingPostLookUpGrad"] == 1
        assert kinds["ResourceGather"] == 1
        feed = stock.feeds(Case())
        np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_columns_with_the_same_ids_share_prune_and_unique() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        other = stock.make_table(case, "other")
        return stock.lookup(table, ids, case) + stock.lookup(other, ids, case)

    graph_def = build_with(two, Case(shards=2))
    for variant in (graph_def, stock.optimized(graph_def)):
        after = fused(variant)
        kinds = Counter(node.op for node in after.node)
        assert kinds["PruneInvalidAndFillEmptyRows"] == kinds["UniqueWithCountsV3"] == 1
        assert kinds["FusedEmbeddingSparsePostLookUpV2"] == 2
        feed = stock.feeds(Case())
        np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_columns_with_different_defaults_share_nothing_but_the_numbers() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        return tf.concat(
            [stock.lookup(table, ids, Case(default_id=d)) for d in (None, 0, 3)], axis=1
        )

    graph_def = build_with(two, Case(shards=2))
    for variant in (graph_def, stock.optimized(graph_def)):
        after = fused(variant)
        assert Counter(node.op for node in after.node)["PruneInvalidAndFillEmptyRows"] == 3
        feed = stock.feeds(Case())
        np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_a_refused_neighbour_on_the_same_ids_keeps_what_it_needs() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        plain = stock.lookup(table, ids, case)
        return tf.concat([plain, stock.lookup(table, ids, case, max_norm=0.5)], axis=1)

    graph_def = build_with(two)
    for variant in (graph_def, stock.optimized(graph_def)):
        result = PASS.apply(variant)
        assert len(result.report.columns) == 2
        feed = stock.feeds(Case())
        expected = stock.run(graph_def, feed)
        np.testing.assert_array_equal(stock.run(result.graph_def, feed), expected)


@pytest.mark.parametrize("split", [False, True])
def test_recorded_shapes_cover_all_outputs(split: bool) -> None:
    graph_def = build_with(stock.lookup)
    if split:
        graph_def = written_somewhere(graph_def)
    op = "FusedEmbeddingSparsePostLookUpV2" if split else "FusedEmbeddingLookup"
    node = only(fused(graph_def), op)
    shapes = [[dim.size for dim in s.dim] for s in node.attr["_output_shapes"].list.shape]
    assert shapes == [[-1, stock.DIM], [-1]][: 1 + split]


def test_lookups_in_library_functions_are_fused() -> None:
    case = Case()

    def build(table: Any, ids: Any, case: Case) -> Any:
        inner = tf.function(lambda i: stock.lookup(table, i, case), autograph=False)
        return tf.function(lambda i: inner(i) * 2.0, autograph=False)(ids)

    graph_def = build_with(build)
    result = PASS.apply(graph_def)
    (column,) = result.report.columns
    assert column.fused
    assert column.function in {f.signature.name for f in graph_def.library.function}
    feed = stock.feeds(case)
    np.testing.assert_array_equal(stock.run(result.graph_def, feed), stock.run(graph_def, feed))
    assert not PASS.apply(result.graph_def).modified


@pytest.mark.parametrize("direct", [True, False])
def test_a_function_that_returns_an_inner_value_is_refused(direct: bool) -> None:
    def build(table: Any, ids: Any, case: Case) -> Any:
        def body(i: Any) -> Any:
            result = stock.lookup(table, i, case)
            return result, result.graph.get_tensor_by_name(f"{ANCHOR}:0")

        return tf.function(body, autograph=False)(ids)[0]

    graph_def = build_with(build)
    (function,) = graph_def.library.function
    if direct:
        (passer,) = (
            node
            for node in function.node_def
            if f"{ANCHOR}:output:0" in node.input[:1] and node.op == "Identity"
        )
        function.ret[function.signature.output_arg[1].name] = passer.input[0]
        function.node_def.remove(passer)
    column = refused(graph_def)
    assert column.node == ANCHOR
    assert ("returned by the function" if direct else "used by") in str(column.reason)


def test_a_function_compiled_by_xla_is_refused() -> None:
    def build(table: Any, ids: Any, case: Case) -> Any:
        inner = tf.function(lambda i: stock.lookup(table, i, case), autograph=False)
        return tf.function(lambda i: inner(i) + 1.0, autograph=False, jit_compile=True)(ids)

    assert refused(build_with(build)).reason == "the function is compiled by XLA"


@pytest.mark.parametrize("v2", [True, False], ids=["functions", "frames"])
def test_a_lookup_in_a_while_loop(v2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", v2)

    def build(table: Any, ids: Any, case: Case) -> Any:
        def step(i: Any, total: Any) -> Any:
            moved = ids.with_values((ids.values + tf.cast(i, tf.int64)) % stock.ROWS)
            return i + 1, total + stock.lookup(table, moved, case)

        start = stock.lookup(table, ids, case)
        shape = tf.TensorShape([None, stock.DIM])
        return v1.while_loop(
            lambda i, _: i < 3, step, (0, start), (tf.TensorShape([]), shape), back_prop=False
        )[1]

    graph_def = build_with(build)
    after = fused(graph_def)
    feed = stock.feeds(Case())
    np.testing.assert_array_equal(stock.run(after, feed), stock.run(graph_def, feed))


def test_new_names_are_free_ones() -> None:
    graph_def = stock.build(Case())
    taken = "embedding_lookup/Reshape_2/table"
    add(graph_def, "NoOp", taken)
    after = nodes(fused(graph_def))
    assert after[taken].op == "NoOp"
    (name,) = (name for name, node in after.items() if node.op == "ReadEmbeddingTables")
    assert plain_name(name) == f"{taken}_1"
    add(graph_def, "NoOp", name)
    assert nodes(fused(graph_def))[f"{name}_1"].op == "ReadEmbeddingTables"


@pytest.mark.parametrize("shape", [[10], [10, 4], [10, 2, 3]])
@pytest.mark.parametrize("called", [False, True])
def test_tables_of_functions_that_are_no_matrices_are_refused(
    shape: list[int], called: bool
) -> None:
    table = tf.Variable(tf.ones(shape))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def look_up(ids: Any) -> Any:
        return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)], autograph=False)
    def call(ids: Any) -> Any:
        return look_up(ids)

    function = (call if called else look_up).get_concrete_function()
    (column,) = fusion.explain(function).columns
    assert column.fused == (len(shape) == 2)
    if len(shape) != 2:
        assert column.reason == f"the table has rank {len(shape)}, not 2"


def test_a_table_of_unknown_rank_is_refused() -> None:
    def lookup(_: Any, ids: Any, case: Case) -> Any:
        table = v1.placeholder_with_default(tf.ones([stock.ROWS, 2]), None)
        return tf.nn.embedding_lookup_sparse(table, ids, None)

    column = refused(build_with(lookup))
    assert column.reason == "the table is not known to be a matrix"


def test_a_single_weight_for_all_entries_is_one_as_in_stock() -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        weights = tf.SparseTensor(ids.indices, v1.placeholder(tf.float32, [None], "w"), [1, 1])
        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum")

    graph_def = build_with(lookup)
    after = fused(graph_def)
    feed = stock.feeds(Case())
    feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
    feed["ids/values:0"] = np.abs(feed["ids/values:0"])
    for count in (1, len(feed["ids/values:0"])):
        feed["w:0"] = np.linspace(0.5, 2, count, dtype=np.float32)
        one, other = (stock.run(graph, feed) for graph in (after, graph_def))
        np.testing.assert_allclose(one, other, rtol=1e-6)
    feed["w:0"] = np.ones(2, np.float32)
    for graph in (after, graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(graph, feed)


@pytest.mark.parametrize("depth", [40, 2000])
def test_a_verdict_comes_soon_whatever_stands_in_front(depth: int) -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        values, weights = ids.values, tf.cast(ids.values, tf.float32)
        for _ in range(depth):
            values, weights = values + values, weights * weights
        ids = tf.SparseTensor(ids.indices, values, ids.dense_shape)
        return tf.nn.embedding_lookup_sparse(table, ids, ids.with_values(weights))

    (column,) = FuseLookups().explain(build_with(lookup)).columns
    assert column.fused or column.reason


@pytest.mark.usefixtures("recognisers_refuse")
def test_a_damaged_graph_gets_a_verdict_and_stays_as_it_is() -> None:
    graph_def = stock.build(Case())
    del nodes(graph_def)["embedding_lookup/GreaterEqual/y"].attr["value"]
    del nodes(graph_def)["embedding_lookup/SparseFillEmptyRows/SparseFillEmptyRows"].input[2:]
    column = refused(graph_def)
    assert "makes no sense" in str(column.reason)


def test_ids_that_are_cast_inside_a_grid_are_taken_as_they_are() -> None:
    def lookup(table: Any, _: Any, case: Case) -> Any:
        matrix = v1.placeholder(tf.int64, [None, 1], "x")
        batch = tf.shape(matrix)[0]
        rows = tf.reshape(tf.tile(tf.expand_dims(tf.range(batch), 1), [1, 1]), [-1])
        columns = tf.tile(tf.range(1), [batch])
        indices = tf.cast(tf.transpose(tf.stack([rows, columns])), tf.int64)
        values = tf.reshape(tf.cast(matrix, tf.int32), [-1])
        shape = tf.cast(tf.stack([batch, 1]), tf.int64)
        return stock.lookup(table, tf.SparseTensor(indices, values, shape), case)

    graph_def = build_with(lookup, Case(ids=tf.int32))
    feed = {"x:0": np.array([[1], [-1], [5]])}
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


@pytest.mark.parametrize(("zeros", "fits"), [(0.0, True), ([[0.0] * 5], False)])
def test_zeros_that_make_the_result_wider_are_no_mask(zeros: Any, fits: bool) -> None:
    def lookup(_: Any, ids: Any, case: Case) -> Any:
        table = tf.ones([stock.ROWS, 1])
        filled, empty = tf.sparse.fill_empty_rows(ids, np.int64(0))
        result = tf.nn.embedding_lookup_sparse(table, filled, None)
        return tf.where(empty[:, tf.newaxis], tf.constant(zeros), result)

    after = FuseLookups(preserve=frozenset({"out", "initialize"})).apply(build_with(lookup))
    feed = stock.feeds(Case())
    feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
    feed["ids/values:0"] = np.abs(feed["ids/values:0"])
    one, other = (stock.run(g, feed)[0] for g in (after.graph_def, build_with(lookup)))
    np.testing.assert_array_equal(one, other)
    assert (one.shape[1] == 1) == fits
