"""Lookups that are fused already, around a stock gather: what becomes one op, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion import ops as fused_ops
from fusion.lookup import VERSIONS, fused_embedding_lookup_sparse_v2
from fusion.lookup import fused_safe_embedding_lookup_sparse as fused_lookup
from fusion.lookup.functions import lookup
from fusion.lookup.options import LookupOptions
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import recognise_all
from fusion.schema.devices import Devices
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import (
    GROUP,
    PASS,
    POST,
    SINGLE,
    checked,
    feeds,
    graph_of,
    named,
    ops,
)
from tests.passes.planned_graphs import table as new_table
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
PRE_V1, POST_V1 = "FusedEmbeddingSparsePreLookUp", "FusedEmbeddingSparsePostLookUp"
IN_PARTS = {PRE_V1, POST_V1, POST, "PruneInvalidAndFillEmptyRows", "UniqueWithCountsV3"}


def column(name: str, version: str = "v2", case: Case | None = None, **options: Any) -> Any:
    """A fused lookup in a table of its own, of ids (and weights) of its own, `name/...`."""
    case = case or Case()
    source = new_table(f"{name}_table", dtype=case.dtype)
    with tf.name_scope(name):
        ids = stock.sparse_placeholder(case)
        weights = v1.placeholder(case.dtype, [None], "weights") if case.weighted else None
        chosen = {"combiner": case.combiner, "max_norm": case.max_norm} | options
        return fused_lookup(source, ids, weights, fusion_version=version, **chosen)


def pair(version: str, case: Case | None = None, **options: Any) -> graph_pb2.GraphDef:
    """Two lookups side by side."""
    made = ("a", "b")
    return graph_of(lambda: tf.concat([column(n, version, case, **options) for n in made], 1))


def fed(*names: str, case: Case | None = None) -> dict[str, Any]:
    """Ids, and weights of which some count for nothing."""
    found = feeds(*names, case=case)
    for name in names if case is not None and case.weighted else ():
        count = len(found[f"{name}/ids/values:0"])
        found[f"{name}/weights:0"] = np.resize([0.5, 2, -1, 3, 0], count).astype(np.float32)
    return found


def assert_stays(
    graph_def: graph_pb2.GraphDef, reason: str, count: int = 1, rewrite: FuseLookups = PASS
) -> None:
    """The graph stays as it is, and its lookups are told, with the reason."""
    result = rewrite.apply(graph_def)
    assert result.graph_def is graph_def
    columns = result.report.columns
    assert rewrite.explain(graph_def).columns == columns
    assert [(column.fused, column.fused_before) for column in columns] == [(False, True)] * count
    for column in columns:
        assert str(column.reason).startswith("it is fused already, around a gather: ")
        assert reason in str(column.reason)


@pytest.mark.parity("made one op by the pass", *VERSIONS)
@pytest.mark.parametrize("options", [{}, {"default_id": 3}, {"prune": False}], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(combiner="sum", ids=tf.int32),
        Case(combiner="sqrtn", weighted=True),
        Case(combiner="sum", weighted=True),
        Case(max_norm=0.7),
        Case(dtype=tf.float64, max_norm=0.5),
        Case(dtype=tf.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", VERSIONS)
def test_lookups_side_by_side_become_one_op(
    version: str, case: Case, options: dict[str, Any]
) -> None:
    feed = fed("a", "b", case=case)
    if "prune" in options:
        feed |= {k: abs(v) for k, v in feed.items() if k.endswith("ids/values:0")}
    after = checked(pair(version, case, **options), feed, ["grouped"] * 2)
    assert not {*IN_PARTS, "ResourceGather", "ConcatV2"} & set(ops(after))
    assert ops(after).count(GROUP) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lookup_alone_becomes_one_op(version: str) -> None:
    after = checked(graph_of(lambda: column("a", version)), feeds("a"), ["single"])
    assert ops(after).count(SINGLE) == 1
    assert not IN_PARTS & set(ops(after))


@pytest.mark.parametrize("version", VERSIONS)
def test_ids_of_unknown_rank(version: str) -> None:
    """What reshapes the result might do something, so that it stays before the concat."""
    case = Case(rank=None)
    checked(pair(version, case), fed("a", "b", case=case), ["single"] * 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_stock_and_fused_lookups_share_an_op(version: str) -> None:
    from tests.passes.planned_graphs import column as stock_column

    graph_def = graph_of(lambda: tf.concat([column("a", version), stock_column("b")], 1))
    checked(graph_def, feeds("a", "b"), ["grouped"] * 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lookup_up_to_the_last_row_with_an_entry(version: str) -> None:
    def build() -> Any:
        options = LookupOptions(version=version, combiner="sqrtn").until_last_row()
        ids = stock.sparse_placeholder(Case(), "a/ids")
        return lookup(new_table("a_table"), ids, None, options)

    ids = {"shape": [9, 2], "indices": [[0, 0], [0, 1], [4, 0]], "values": [3, 1, 3]}
    feed = {f"a/ids/{part}:0": np.array(value) for part, value in ids.items()}
    after = checked(graph_of(build), feed, ["single"])
    assert stock.run(after, feed)[0].shape == (5, stock.DIM)
    assert not IN_PARTS & set(ops(after))


def test_row_splits_are_read_as_they_are() -> None:
    def build() -> Any:
        splits = v1.placeholder(tf.int64, [None], "a/splits")
        ids = tf.RaggedTensor.from_row_splits(
            v1.placeholder(tf.int64, [None], "a/ids"), splits, validate=False
        )
        return fused_lookup(new_table("a_table"), ids)

    feed = {"a/splits:0": [0, 2, 2, 3], "a/ids:0": [1, -1, 4]}
    after = checked(graph_of(build), feed, ["single"])
    (node,) = (node for node in named(after).values() if node.op == SINGLE)
    assert node.attr["form"].s == b"row_splits"
    assert "RaggedTensorToSparse" not in ops(after)


def test_dense_ids_are_read_as_they_are() -> None:
    def build() -> Any:
        ids = v1.placeholder(tf.int64, [None, 3], "a/ids")
        entries = fused_ops.prune_dense_and_fill_empty_rows(
            dense_ids=ids, Tid=tf.int64, prune=True, fill_empty_row=True, num_buckets=9,
            bucket_default=2, use_ignored_id=True, ignored_id=-5,
        )  # fmt: skip
        unique = fused_ops.unique_with_counts_v3(input=entries.sp_values_out)
        return fused_ops.fused_embedding_sparse_post_look_up_v2(
            emb_shards=[tf.gather(new_table("a_table"), unique.unique_keys)],
            partition_permutation=tf.zeros([1, 2], tf.int32),
            sp_dense_shape=entries.sp_dense_shape_out,
            indices_before_unique=entries.sp_indices_out,
            is_row_empty=entries.is_row_empty,
            unique_idxs=unique.unique_idxs,
            sp_weights_values=tf.ones([1]),
            fill_empty_row=True,
        ).emb_vectors

    feed = {"a/ids:0": [[1, -5, 12], [-5, -5, -5], [0, 3, 3]]}
    after = checked(graph_of(build), feed, ["single"])
    (node,) = (node for node in named(after).values() if node.op == SINGLE)
    assert node.attr["form"].s == b"dense"


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_of_the_same_ids_share_what_prunes_them(version: str) -> None:
    def build() -> Any:
        ids = stock.sparse_placeholder(Case(), "a/ids")
        tables = [new_table(name) for name in ("a_table", "b_table")]
        return tf.concat([fused_lookup(one, ids, fusion_version=version) for one in tables], 1)

    graph_def = stock.optimized(graph_of(build), keep=("out", "initialize"))
    checked(graph_def, feeds("a"), ["grouped"] * 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_training_graphs_stay(version: str) -> None:
    def build() -> Any:
        together = tf.concat([column("a", version), column("b", version)], 1)
        step = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(together))
        with tf.control_dependencies([step]):
            return tf.identity(together)

    assert_stays(graph_of(build), "its gradient is in the graph", 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_tables_that_are_written_row_by_row_stay(version: str) -> None:
    def build() -> Any:
        found = column("a", version)
        (variable,) = v1.global_variables()
        v1.scatter_add(variable, [0], tf.ones([1, stock.DIM]), name="write")
        return found

    rewrite = FuseLookups(preserve=frozenset({"out", "initialize", "write"}))
    assert_stays(graph_of(build), "written in the same program", rewrite=rewrite)


def test_a_v1_lookup_beside_a_table_on_a_gpu_stays() -> None:
    """TensorFlow has put its ops on the CPU, from where an op would read the table."""
    graph_def = graph_of(lambda: column("a", "v1"))
    on_gpus = FuseLookups(PASS.preserve, devices=Devices(frozenset({"CPU", "GPU"}), "GPU"))
    (single,) = on_gpus.apply(graph_def).report.columns
    assert single.fused
    for node in graph_def.node:
        kind = "CPU" if node.op in {PRE_V1, POST_V1} else "GPU"
        node.device = f"/job:localhost/replica:0/task:0/device:{kind}:0"
    assert_stays(graph_def, "its table is elsewhere", rewrite=on_gpus)


@pytest.mark.parametrize("version", VERSIONS)
def test_tables_in_shards_stay(version: str) -> None:
    def build() -> Any:
        shards = [new_table(name) for name in ("one", "two")]
        return fused_lookup(shards, stock.sparse_placeholder(Case()), fusion_version=version)

    assert_stays(graph_of(build), "its table is in shards")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", [1, -1])
def test_counts_that_are_used_stay(version: str, place: int) -> None:
    """Of entries, the second output of the last op; of ids, the third one of the unique op."""

    def build() -> Any:
        column("a", version)
        graph = v1.get_default_graph()
        kind = {"v1": POST_V1, "v2": POST}[version] if place == 1 else "UniqueWithCountsV3"
        (op,) = (op for op in graph.get_operations() if op.type == kind)
        return op.outputs[place]

    assert_stays(graph_of(build), "used")


def test_half_types_that_are_clipped_stay() -> None:
    """Stock's ops clip them, with other numbers than an op in one piece would."""
    case = Case(dtype=tf.float16, max_norm=0.5)
    for version in VERSIONS:
        assert_stays(pair(version, case), "its rows are clipped by stock ops", 2)


def test_entries_of_rows_that_are_neither_filled_nor_left_out_stay() -> None:
    def build() -> Any:
        ids = stock.sparse_placeholder(Case())
        return fused_embedding_lookup_sparse_v2(new_table("a"), ids, fill_empty_row=False)

    assert_stays(graph_of(build), "empty rows are neither filled nor left out")


def _chain(**changes: Any) -> Callable[[], Any]:
    """A v2 chain by hand, with some of the last op's inputs and attrs exchanged."""

    def build() -> Any:
        ids = stock.sparse_placeholder(Case(), "a/ids")
        entries = fused_ops.prune_invalid_and_fill_empty_rows(
            sp_values=ids.values,
            sp_indices=ids.indices,
            sp_dense_shape=ids.dense_shape,
            sp_weights_values=tf.ones([1]),
            prune=True,
            fill_empty_row=True,
        )
        unique = fused_ops.unique_with_counts_v3(input=entries.sp_values_out)
        inputs: dict[str, Any] = {
            "emb_shards": [tf.gather(new_table("a_table"), unique.unique_keys)],
            "partition_permutation": tf.zeros([1, 2], tf.int32),
            "sp_dense_shape": ids.dense_shape,
            "indices_before_unique": entries.sp_indices_out,
            "is_row_empty": entries.is_row_empty,
            "unique_idxs": unique.unique_idxs,
            "sp_weights_values": tf.ones([1]),
            "fill_empty_row": True,
        }
        inputs |= {key: change(inputs.get(key)) for key, change in changes.items()}
        return fused_ops.fused_embedding_sparse_post_look_up_v2(**inputs).emb_vectors

    return build


def test_a_chain_by_hand() -> None:
    checked(graph_of(_chain()), feeds("a"), ["single"])


@pytest.mark.parametrize(
    "changes",
    [
        {"sp_dense_shape": lambda _: v1.placeholder(tf.int64, [2])},
        {"indices_before_unique": lambda _: v1.placeholder(tf.int64, [None, 2])},
        {"is_row_empty": lambda _: v1.placeholder(tf.bool, [None])},
        {"unique_idxs": lambda _: v1.placeholder(tf.int32, [None])},
        {"emb_shards": lambda _: [v1.placeholder(tf.float32, [None, 2])]},
        {"emb_shards": lambda rows: [2 * rows[0]]},
        {"default_id": lambda _: 0},
        {"fill_empty_row": lambda _: False},
        {"use_sparse_weights": lambda _: True},
        {"row_count": lambda _: "last_row"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_chains_of_ops_that_do_not_belong_together_stay(changes: dict[str, Any]) -> None:
    assert_stays(graph_of(_chain(**changes)), "")


def test_lookups_that_stay_in_parts_have_a_reason() -> None:
    """Not in the report, but for those who look for it."""
    graph_def = graph_of(_chain(is_row_empty=tf.logical_not))
    (one,) = recognise_all(GraphView.of_graph(graph_def))
    assert one.has_few_ops
    assert one.failure is not None
    assert one.failure.reason == "the entries are not those that were pruned"
