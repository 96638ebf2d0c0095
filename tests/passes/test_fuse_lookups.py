"""What the pass keeps, moves and refuses, seen on the graph itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.edit import GraphEdit
from fusion.schema.devices import Devices
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import (
    ANCHOR,
    GATHER,
    PASS,
    add,
    build_with,
    fused,
    nodes,
    only,
    plainly_named,
    refused,
    to_sparse,
    written_somewhere,
)
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1


def test_one_column_becomes_one_op_under_the_old_output_name() -> None:
    graph_def = stock.build(Case())
    after = nodes(fused(graph_def))
    assert after["out"] == nodes(graph_def)["out"]
    kinds = Counter(node.op for node in after.values() if node.name.startswith("embedding_lookup"))
    assert kinds == {
        "ReadEmbeddingTables": 1,
        "FusedEmbeddingLookup": 1,
        "Const": 2,
    }
    assert after["embedding_lookup/Reshape_2"].op == "FusedEmbeddingLookup"


def test_one_column_of_a_table_that_is_written_becomes_four_ops() -> None:
    graph_def = written_somewhere(stock.build(Case()))
    after = nodes(fused(graph_def))
    assert after["embedding_lookup/Reshape_2"].op == "FusedEmbeddingSparsePostLookUpV2"
    assert after["out"] == nodes(graph_def)["out"]
    kinds = Counter(node.op for node in after.values() if node.name.startswith("embedding_lookup"))
    assert kinds == {
        "PruneInvalidAndFillEmptyRows": 1,
        "UniqueWithCountsV3": 1,
        "ResourceGather": 1,
        "FusedEmbeddingSparsePostLookUpV2": 1,
        "Const": 2,
    }


def test_nothing_else_changes() -> None:
    graph_def = stock.build(Case())
    before, after = nodes(graph_def), nodes(fused(graph_def))
    others = [name for name in before if not name.startswith("embedding_lookup")]
    assert [after[name] for name in others] == [before[name] for name in others]
    assert fused(graph_def).versions == graph_def.versions


def test_a_graph_without_lookups_is_returned_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.math.segment_sum(tf.ones([3, 2]), [0, 0, 1], name="sums")
        graph_def = graph.as_graph_def()
    result = FuseLookups().apply(graph_def)
    assert result.graph_def is graph_def
    (column,) = result.report.columns
    assert column.reason == "the segment sum does not reduce looked-up rows"


def test_applying_twice_changes_nothing_and_equal_graphs_give_equal_bytes() -> None:
    graph_def = stock.build(Case())
    once = PASS.apply(graph_def).graph_def
    again = PASS.apply(once)
    assert not again.modified
    assert again.graph_def == once
    other = PASS.apply(stock.build(Case())).graph_def
    assert other.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


def test_explain_gives_the_same_verdicts_and_changes_nothing() -> None:
    graph_def = stock.build(Case())
    before = graph_def.SerializeToString(deterministic=True)
    report = PASS.explain(graph_def)
    assert report.columns == PASS.apply(graph_def).report.columns
    assert report.nodes_before == report.nodes_after == len(graph_def.node)
    assert graph_def.SerializeToString(deterministic=True) == before


def with_control_edges(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    add(graph_def, "NoOp", "after_read", f"^{GATHER}")
    add(graph_def, "NoOp", "after_all", "^embedding_lookup/Reshape_2", "^embedding_lookup/Where")
    add(graph_def, "NoOp", "before")
    nodes(graph_def)[GATHER].input.append("^before")
    nodes(graph_def)["embedding_lookup/Where"].input.append("^before")
    return graph_def


def test_control_edges_move_to_the_new_op() -> None:
    graph_def = with_control_edges(stock.build(Case()))
    after = nodes(plainly_named(fused(graph_def)))
    base = "embedding_lookup/Reshape_2"
    assert list(after["after_read"].input) == list(after["after_all"].input) == [f"^{base}"]
    for name in (base, f"{base}/table"):
        assert "^before" in after[name].input
    feed = stock.feeds(Case())
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


def test_control_edges_move_to_the_new_ops() -> None:
    graph_def = with_control_edges(written_somewhere(stock.build(Case())))
    after = nodes(plainly_named(fused(graph_def)))
    base = "embedding_lookup/Reshape_2"
    assert list(after["after_read"].input) == [f"^{base}/gather"]
    assert list(after["after_all"].input) == [f"^{base}", f"^{base}/prune_and_fill"]
    assert "^before" in after[f"{base}/gather"].input
    assert "^before" in after[f"{base}/prune_and_fill"].input
    assert "^before" not in after[base].input
    feed = stock.feeds(Case())
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_each_shard_is_read_after_what_it_waits_for(max_norm: float | None) -> None:
    case = Case(shards=2, max_norm=max_norm, dtype=tf.float16)
    graph_def = stock.build(case)
    for i in range(2):
        add(graph_def, "NoOp", f"before_{i}")
        gathers = [node for node in graph_def.node if node.op == "ResourceGather"]
        gathers[i].input.append(f"^before_{i}")
        add(graph_def, "NoOp", f"after_{i}", f"^{gathers[i].name}")
    after = fused(graph_def)
    for i, gather in enumerate(node for node in after.node if node.op == "ResourceGather"):
        assert f"^before_{i}" in gather.input
        assert f"^before_{1 - i}" not in gather.input
        assert list(nodes(after)[f"after_{i}"].input) == [f"^{gather.name}"]
    stock.run(after, stock.feeds(case))


@pytest.mark.parametrize("table", ["resource", "ref"])
@pytest.mark.parametrize("shards", [1, 2])
def test_reads_stay_between_the_writes_around_them(table: str, shards: int) -> None:
    case = Case(table=table, shards=shards)

    def written_read_written(table: Any, ids: Any, case: Case) -> Any:
        parts = table if isinstance(table, list) else [table]
        first = [v1.assign(part, tf.ones_like(part)) for part in parts]
        with tf.control_dependencies(first):
            result = stock.lookup(
                [tf.identity(p) for p in parts] if shards > 1 else parts, ids, case
            )
        with tf.control_dependencies([result]):
            last = [v1.scatter_update(part, [0], tf.zeros([1, stock.DIM])) for part in parts]
        with tf.control_dependencies(last):
            return result + 0.0

    graph_def = build_with(written_read_written, case)
    after = fused(graph_def)
    # TensorFlow's own optimizer lets stock lookups of resources read before they should.
    expected = stock.run(graph_def, stock.feeds(case), optimize=False)
    assert set(np.unique(expected)) == {0.0, 1.0}
    for optimize in (False, True):
        got = stock.run(after, stock.feeds(case), optimize=optimize)
        np.testing.assert_array_equal(got, expected)


WRITTEN_FIRST = {
    "safe": stock.lookup,
    "filled": lambda table, ids, case: tf.nn.embedding_lookup_sparse(
        table, tf.sparse.fill_empty_rows(ids, np.int64(0))[0], None
    ),
    "plain": lambda table, ids, case: tf.nn.embedding_lookup_sparse(table, ids, None),
}


@pytest.mark.parametrize("optimize", [False, True], ids=["raw", "optimized"])
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("safe", Case()),
        ("safe", Case(weighted=True)),
        ("safe", Case(max_norm=100.0)),
        ("safe", Case(shards=2)),
        ("safe", Case(ragged=True)),
        ("safe", Case(rank=3, default_id=1)),
        ("filled", Case()),
        ("plain", Case()),
    ],
    ids=str,
)
def test_a_lookup_stays_behind_a_write_that_only_its_constants_wait_for(
    kind: str, case: Case, optimize: bool
) -> None:
    def written_before(table: Any, ids: Any, case: Case) -> Any:
        parts = table if isinstance(table, list) else [table]
        with tf.control_dependencies([v1.assign(part, tf.ones_like(part)) for part in parts]):
            return WRITTEN_FIRST[kind](table, ids, case)

    graph_def = build_with(written_before, case)
    if optimize:
        graph_def = stock.optimized(graph_def)
        if any("SimplifyEmbeddingLookupStage" in node.name for node in graph_def.node):
            return  # TensorFlow's optimizer has lost the order itself: the table is read anyhow
    feed = stock.feeds(case)
    if kind != "safe":
        feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
        feed["ids/values:0"] = np.abs(feed["ids/values:0"])
    after = fused(graph_def)
    if not optimize:
        expected = stock.run(graph_def, feed, optimize=False)[0]
        assert set(np.unique(expected)) <= {0.0, 1.0}
    assert set(np.unique(stock.run(after, feed, optimize=False)[0])) <= {0.0, 1.0}


@pytest.mark.parametrize("circular", [False, True])
def test_lookups_that_would_wait_for_each_other_are_refused(
    circular: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Print", "effect", "ids/values", T=9)
    nodes(graph_def)["effect"].attr["U"].list.SetInParent()
    nodes(graph_def)[f"{ANCHOR}/strided_slice/stack"].input.append("^effect")
    build = GraphEdit._build

    def in_a_circle(edit: GraphEdit) -> list[node_def_pb2.NodeDef]:
        built = build(edit)
        if circular:
            node = node_def_pb2.NodeDef()
            node.CopyFrom(next(one for one in built if one.name == "effect"))
            node.input.append("^embedding_lookup/Reshape_2")
            built = [node if one.name == "effect" else one for one in built]
        return built

    monkeypatch.setattr(GraphEdit, "_build", in_a_circle)
    if circular:
        assert "in a circle" in str(refused(graph_def).reason)
    else:
        assert "^effect" in nodes(fused(graph_def))["embedding_lookup/Reshape_2"].input


def test_a_control_path_out_of_the_lookup_and_back_is_refused() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "NoOp", "between", "^embedding_lookup/Where")
    nodes(graph_def)[f"{ANCHOR}/strided_slice"].input.append("^between")
    assert "control dependency" in str(refused(graph_def).reason)


def test_devices_and_colocation_stay_with_the_table() -> None:
    graph_def = stock.build(Case())
    for node in graph_def.node:
        node.device = "/job:worker/device:CPU:0"
    nodes(graph_def)[GATHER].device = "/job:ps/device:CPU:0"
    gather = only(fused(graph_def), "ResourceGather")
    assert gather.device == "/job:ps/device:CPU:0"
    assert list(gather.attr["_class"].list.s) == [b"loc:@table"]
    assert only(fused(graph_def), "UniqueWithCountsV3").device == "/job:worker/device:CPU:0"


def test_a_lookup_on_a_device_without_kernels_is_refused() -> None:
    graph_def = stock.build(Case())
    nodes(graph_def)[ANCHOR].device = "/device:GPU:0"
    assert refused(graph_def).node == ANCHOR
    everywhere = FuseLookups(devices=Devices(frozenset({"CPU", "GPU"})))
    assert everywhere.apply(graph_def).modified


def test_colocation_with_a_removed_node_is_dropped() -> None:
    graph_def = stock.build(Case())
    groups = nodes(graph_def)["out"].attr["_class"].list.s
    groups.extend([b"loc:@table", f"loc:@{ANCHOR}".encode()])
    after = fused(graph_def)
    assert list(nodes(after)["out"].attr["_class"].list.s) == [b"loc:@table"]
    stock.run(after, stock.feeds(Case()))


def test_a_reduction_that_is_fetched_is_refused() -> None:
    column = refused(stock.build(Case()), FuseLookups(preserve=frozenset({"out", ANCHOR})))
    assert column.node == ANCHOR


@pytest.mark.parametrize("name", ["embedding_lookup", "embedding_lookup/Reshape_2"])
def test_a_result_that_is_fetched_keeps_its_name(name: str) -> None:
    preserve = frozenset({"initialize", name})
    graph_def = stock.build(Case())
    after = FuseLookups(preserve=preserve).apply(graph_def).graph_def
    assert nodes(after)[name].op == "FusedEmbeddingLookup"
    feed, fetches = stock.feeds(Case()), (f"{name}:0", "out:0")
    np.testing.assert_array_equal(
        stock.run(after, feed, fetches), stock.run(graph_def, feed, fetches)
    )


def test_a_reduction_that_others_use_is_refused() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "spy", ANCHOR, T=1)
    column = refused(graph_def, FuseLookups(preserve=frozenset({"out", "initialize", "spy"})))
    assert column.node == ANCHOR
    assert "spy" in str(column.reason)
    assert column.spec is not None


def test_a_user_that_nobody_sees_keeps_its_value_and_is_no_obstacle() -> None:
    graph_def = stock.build(Case())
    add(graph_def, "Identity", "unseen", f"{ANCHOR}/Unique:1", T=3)
    after = fused(graph_def)
    feed, fetches = stock.feeds(Case()), ("unseen:0", "out:0")
    for one, other in zip(
        stock.run(after, feed, fetches), stock.run(graph_def, feed, fetches), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dense", [False, True])
def test_the_flags_of_empty_rows_may_be_used_by_others(dense: bool) -> None:
    def lookup(table: Any, ids: Any, case: Case) -> Any:
        if dense:
            matrix = tf.stack([ids.indices[:, 0], ids.values], 1, name="matrix")
            ids = to_sparse(tf.ensure_shape(matrix, [None, 2]))
        return stock.lookup(table, ids, case)

    graph_def = build_with(lookup)
    (fill,) = (node.name for node in graph_def.node if node.op == "SparseFillEmptyRows")
    add(graph_def, "Identity", "spy", f"{fill}:2", T=10)
    result = FuseLookups(preserve=frozenset({"out", "initialize", "spy"})).apply(graph_def)
    (column,) = result.report.columns
    assert column.fused
    assert fill not in nodes(result.graph_def)
    feed, fetches = stock.feeds(Case()), ("spy:0", "out:0")
    for one, other in zip(
        stock.run(result.graph_def, feed, fetches), stock.run(graph_def, feed, fetches), strict=True
    ):
        np.testing.assert_array_equal(one, other)
