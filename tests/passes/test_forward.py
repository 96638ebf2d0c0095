"""Lookups of which only the forward is fused: somebody reads what is inside them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import control_flow_util

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report.report import FusionResult
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import ANCHOR, PASS, add, build_with, nodes, only, refused
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
POST = "FusedEmbeddingSparsePostLookUpV2"
FILL = "embedding_lookup/SparseFillEmptyRows/SparseFillEmptyRows"
REDUCTIONS = ("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum", "SegmentSum")
SPIED = FuseLookups(preserve=frozenset({"out", "initialize", "spy"}))
HALF = (tf.float16, tf.bfloat16)


def forward(graph_def: graph_pb2.GraphDef, rewrite: FuseLookups = PASS) -> FusionResult:
    """The result of the pass, which fused the forward of the one column, and does so once."""
    result = rewrite.apply(graph_def)
    (column,) = result.report.columns
    assert (column.fused, column.form) == (True, "forward"), str(result.report)
    assert column.reason
    assert f"forward alone: {column.reason}" in str(result.report)
    assert f"forward alone  {column.reason}" in str(column).replace("~", ANCHOR.partition("/")[0])
    again = rewrite.apply(result.graph_def)
    assert not again.modified
    assert all(column.fused_before for column in again.report.columns)
    return result


def kinds(result: FusionResult) -> Counter[str]:
    return Counter(node.op for node in result.graph_def.node)


def assert_same(
    one: graph_pb2.GraphDef,
    other: graph_pb2.GraphDef,
    feed: stock.Feeds,
    fetches: tuple[str, ...] = ("out:0",),
    rtol: float = 0.0,
) -> None:
    results = (stock.run(graph, feed, fetches) for graph in (one, other))
    for pair in zip(*results, strict=True):
        a, b = (np.asarray(value, np.float64) for value in pair)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def spied(case: Case, source: str, dtype: int) -> graph_pb2.GraphDef:
    """A lookup inside of which a node `spy` reads a tensor."""
    graph_def = stock.build(case)
    add(graph_def, "Identity", "spy", source, T=dtype)
    return graph_def


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(default_id=2),
        Case(combiner="sqrtn", ids=tf.int32),
        Case(combiner="sum", max_norm=1.5),
        Case(shards=3),
        Case(weighted=True),
        Case(weighted=True, combiner="sqrtn", default_id=1),
        Case(weighted=True, combiner="sum", dtype=tf.float16),
        Case(weighted=True, dtype=tf.bfloat16),
        Case(dtype=tf.float64),
        Case(dtype=tf.float16, combiner="sum"),
    ],
    ids=str,
)
def test_distinct_ids_that_others_read(case: Case) -> None:
    graph_def = stock.build(case)
    unique = only(graph_def, "Unique")
    add(graph_def, "Identity", "spy", unique.name, T=unique.attr["T"].type)
    exact = not case.weighted
    rtol = 0.0 if exact else 1e-2 if case.dtype in HALF else 1e-6
    # Grappler lets plain lookups read the whole table, without distinct ids.
    keeps_gathers = case.weighted or case.shards > 1 or case.max_norm is not None
    optimized = [stock.optimized(graph_def, ("out", "spy"))] if keeps_gathers else []
    for variant in (graph_def, *optimized):
        result = forward(variant, SPIED)
        counts = kinds(result)
        assert counts[POST] == counts["Unique"] == 1
        assert sum(counts[op] for op in REDUCTIONS) == 0
        assert_same(result.graph_def, graph_def, stock.feeds(case), ("out:0", "spy:0"), rtol)


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (f"{ANCHOR}/Unique:1", 3),
        (f"{ANCHOR}/embedding_lookup", 1),
        (f"{ANCHOR}/strided_slice", 9),
        ("embedding_lookup/Tile", 10),
        (f"{FILL}:1", 9),
    ],
)
def test_what_others_read_stays(source: str, dtype: int) -> None:
    graph_def = spied(Case(), source, dtype)
    result = forward(graph_def, SPIED)
    (column,) = result.report.columns
    assert "used by spy (Identity)" in str(column.reason)
    assert column.node == source.partition(":")[0]
    assert source.partition(":")[0] in nodes(result.graph_def)
    assert_same(result.graph_def, graph_def, stock.feeds(Case()), ("out:0", "spy:0"))


@pytest.mark.parametrize("name", [f"{ANCHOR}/embedding_lookup", "embedding_lookup/GatherV2_2"])
def test_what_is_fetched_stays(name: str) -> None:
    graph_def = stock.build(Case())
    result = forward(graph_def, FuseLookups(preserve=frozenset({"out", "initialize", name})))
    assert_same(result.graph_def, graph_def, stock.feeds(Case()), ("out:0", f"{name}:0"))


def test_a_plain_lookup_ends_where_stock_ends() -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        ids = tf.SparseTensor(ids.indices, tf.abs(ids.values), ids.dense_shape)
        weights = tf.SparseTensor(ids.indices, v1.placeholder(tf.float32, [None], "w"), [1, 1])
        result = tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum")
        tf.identity(result.graph.get_tensor_by_name("embedding_lookup_sparse/Unique:0"), "spy")
        return result

    graph_def = build_with(lookup, Case(rank=2))
    result = forward(graph_def, SPIED)
    feed = stock.feeds(Case())
    feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
    # A single weight is one for all.
    for count in (1, len(feed["ids/values:0"])):
        feed["w:0"] = np.linspace(0.5, 2, count, dtype=np.float32)
        assert_same(result.graph_def, graph_def, feed, rtol=1e-6)


def _trained(combiner: str, dtype: Any = tf.float32, weights: bool = True) -> graph_pb2.GraphDef:
    """A lookup and its gradients: of the table, and of the weights if they are trained."""

    def lookup(table: Any, ids: Any, case: Case) -> Any:
        fed = v1.placeholder(case.dtype, [None], "weights")
        result = v1.nn.safe_embedding_lookup_sparse(
            table, ids, _with_values(ids, fed), combiner=case.combiner
        )
        loss = tf.reduce_sum(tf.square(result))
        of_table, of_weights = tf.gradients(loss, [table.handle, fed])
        tf.identity(of_table.values, "of_table")
        if weights:
            tf.identity(tf.convert_to_tensor(of_weights), "of_weights")
        return result

    case = Case(combiner=combiner, dtype=dtype, weighted=True)
    return build_with(lookup, case)


def _with_values(ids: Any, values: Any) -> tf.SparseTensor:
    return tf.SparseTensor(ids.indices, values, ids.dense_shape)


def test_trained_weights() -> None:
    graph_def = _trained("sum")
    outputs = ("out", "of_table", "of_weights")
    rewrite = FuseLookups(preserve=frozenset({*outputs, "initialize"}))
    for variant in (graph_def, stock.optimized(graph_def, outputs)):
        result = forward(variant, rewrite)
        counts = kinds(result)
        assert (counts[POST], counts["SegmentSum"]) == (1, 0)
        assert counts["UnsortedSegmentSum"] > 0
        fetches = ("out:0", "of_table:0", "of_weights:0")
        assert_same(result.graph_def, graph_def, stock.feeds(Case(weighted=True)), fetches, 1e-5)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_sums_that_a_gradient_reads_keep_the_lookup_as_it_is(combiner: str) -> None:
    rewrite = FuseLookups(preserve=frozenset({"out", "initialize", "of_table", "of_weights"}))
    column = refused(_trained(combiner), rewrite)
    assert "a value inside the lookup is also used by gradients/" in str(column.reason)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_of_half_types(combiner: str, dtype: Any) -> None:
    graph_def = _trained(combiner, dtype, weights=False)
    outputs = ("out", "of_table")
    rewrite = FuseLookups(preserve=frozenset({*outputs, "initialize"}))
    case = Case(weighted=True, dtype=dtype)
    for variant in (graph_def, stock.optimized(graph_def, outputs)):
        result = forward(variant, rewrite)
        (column,) = result.report.columns
        assert "grad" in str(column.reason)
        counts = kinds(result)
        # The divisor is the only sum that the gradient reads.
        assert counts["SegmentSum"] == (combiner != "sum")
        assert_same(result.graph_def, graph_def, stock.feeds(case), ("out:0", "of_table:0"), 2e-2)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_gradient_in_a_v1_loop(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)

    def lookup(table: Any, ids: Any, case: Case) -> Any:
        fed = v1.placeholder(tf.float32, [None], "weights") if weighted else None

        def step(i: Any, total: Any) -> Any:
            moved = _with_values(ids, (ids.values + tf.cast(i, tf.int64)) % stock.ROWS)
            weights = None if fed is None else _with_values(moved, fed * 0.5)
            found = v1.nn.safe_embedding_lookup_sparse(table, moved, weights, combiner="sum")
            return i + 1, total + found * tf.cast(i + 1, tf.float32)

        shape = tf.TensorShape([None, stock.DIM])
        start = tf.zeros([tf.shape(ids)[0], stock.DIM])
        result = v1.while_loop(lambda i, _: i < 3, step, (0, start), (tf.TensorShape([]), shape))[1]
        return result, tf.convert_to_tensor(tf.gradients(tf.square(result), table.handle)[0])

    def build(table: Any, ids: Any, case: Case) -> Any:
        result, gradient = lookup(table, ids, case)
        tf.identity(gradient, "of_table")
        return result

    case = Case(rank=2, weighted=weighted)
    graph_def = build_with(build, case)
    result = forward(graph_def, FuseLookups(preserve=frozenset({"out", "initialize", "of_table"})))
    feed = stock.feeds(case)
    if weighted:
        feed["weights:0"] = np.abs(np.nan_to_num(feed["weights:0"], nan=1.0))
    fetches = ("out:0", "of_table:0")
    assert_same(result.graph_def, graph_def, feed, fetches, 1e-5 if weighted else 0.0)


def test_two_lookups_of_the_same_ids() -> None:
    def two(table: Any, ids: Any, case: Case) -> Any:
        other = stock.make_table(case, "other")
        return tf.concat([stock.lookup(one, ids, case) for one in (table, other)], 1)

    case = Case(max_norm=1.5)
    graph_def = build_with(two, case)
    add(graph_def, "Identity", "spy", f"{ANCHOR}/Unique:1", T=3)
    merged = stock.optimized(graph_def, ("out", "spy"))
    for variant, form in ((graph_def, "single"), (merged, "forward")):
        result = SPIED.apply(variant)
        forms = [column.form for column in result.report.columns]
        assert forms == ["forward", form], str(result.report)
        assert_same(result.graph_def, graph_def, stock.feeds(case), ("out:0", "spy:0"), 1e-6)


def test_a_product_that_others_read_keeps_the_lookup_as_it_is() -> None:
    graph_def = stock.build(Case(weighted=True))
    product = only(graph_def, "Mul")
    add(graph_def, "Identity", "spy", product.name, T=1)
    assert refused(graph_def, SPIED).node == product.name


def test_a_wait_for_what_is_read_inside_keeps_the_lookup_as_it_is() -> None:
    graph_def = spied(Case(), f"{ANCHOR}/Unique:1", 3)
    nodes(graph_def)["embedding_lookup"].input.append("^spy")
    assert "control dependency" in str(refused(graph_def, SPIED).reason)


def test_waits_of_what_is_replaced_stay() -> None:
    graph_def = spied(Case(), f"{ANCHOR}/Unique:1", 3)
    add(graph_def, "NoOp", "before")
    nodes(graph_def)[ANCHOR].input.append("^before")
    result = forward(graph_def, SPIED)
    assert "^before" in only(result.graph_def, POST).input
    assert_same(result.graph_def, graph_def, stock.feeds(Case()), ("out:0", "spy:0"))


def test_another_device_keeps_the_lookup_as_it_is() -> None:
    graph_def = spied(Case(), f"{ANCHOR}/Unique:1", 3)
    nodes(graph_def)[ANCHOR].device = "/device:GPU:0"
    assert "placed on" in str(refused(graph_def, SPIED).reason)


def test_positions_of_int64_keep_the_lookup_as_it_is() -> None:
    graph_def = spied(Case(), f"{ANCHOR}/Unique:1", 9)
    nodes(graph_def)[f"{ANCHOR}/Unique"].attr["out_idx"].type = 9
    assert "used by spy" in str(refused(graph_def, SPIED).reason)


def test_rows_of_ragged_ids_keep_the_lookup_as_it_is() -> None:
    # They are filled without indices.
    case = Case(ragged=True)
    graph_def = spied(case, f"{ANCHOR}/Unique:1", 3)
    (column,) = SPIED.apply(graph_def).report.columns
    assert not column.fused
    assert "used by spy" in str(column.reason)
