"""What LowerLookups makes of small graphs, as directives over their text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.lookup import VERSIONS, fused_safe_embedding_lookup_sparse
from fusion.passes.fuse_lookups import FuseLookups
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import column, graph_of, table
from tests.passes.printed_graphs import PRESERVE, bags, fused, lowered, printed, trained
from tests.passes.rewritten_graphs import build_with
from tests.passes.stock_graphs import Case, build

v1 = tf.compat.v1


def test_a_lookup_is_lowered_to_one_segment_op() -> None:
    lowered(build(Case())).check("""
        CHECK: %[[entries:.*]] = SparseReshape(ids/indices, ids/shape, ids/shape)
        CHECK: %[[valid:.*]] = GreaterEqual(ids/values,
        CHECK-NEXT: %[[kept:.*]] = Where([[valid]])
        CHECK: %[[indices:.*]] = GatherV2([[entries]],
        CHECK-NEXT: %[[values:.*]] = GatherV2(ids/values,
        CHECK-NEXT: %[[fill:.*]] = SparseFillEmptyRows([[indices]], [[values]], [[entries]]:1,
        CHECK-NOT: {{Unique|Gather|Tile}}
        CHECK: %[[table:.*]] = ReadVariableOp(table)
        CHECK-NEXT: %[[rows:.*]] = SparseSegmentMean([[table]], [[fill]]:1,
        CHECK-NEXT: %[[zeros:.*]] = ZerosLike([[rows]])
        CHECK-NEXT: %embedding_lookup/Reshape_2 = Select([[fill]]:2, [[zeros]], [[rows]])
        CHECK-NEXT: %out = Identity(embedding_lookup/Reshape_2)
    """)


def test_weighted_rows_are_lowered_without_distinct_ids() -> None:
    lowered(build(Case(weighted=True))).check("""
        CHECK: %[[valid:.*]] = GreaterEqual(ids/values,
        CHECK: %[[positive:.*]] = Greater(weights,
        CHECK-NEXT: LogicalAnd([[valid]], [[positive]])
        CHECK-COUNT-2: SparseFillEmptyRows(
        CHECK-NOT: Unique
        CHECK: %[[rows:.*]] = ResourceGather(table,
        CHECK: %[[product:.*]] = Mul([[rows]], [[weights:.*]]) {
        CHECK-NEXT: %[[divisor:.*]] = SegmentSum([[weights]],
        CHECK-NEXT: %[[sum:.*]] = SegmentSum([[product]],
        CHECK-NEXT: DivNoNan([[sum]], [[divisor]])
    """)


def test_one_id_per_row_is_lowered_to_a_gather() -> None:
    lowered(graph_of(lambda: stock.lookup(table("t"), bags(1), Case()))).check("""
        CHECK: %[[flat:.*]] = Reshape(matrix,
        CHECK: %[[valid:.*]] = GreaterEqual([[flat]],
        CHECK-NEXT: %[[ids:.*]] = Maximum([[flat]],
        CHECK-NEXT: %[[rows:.*]] = ResourceGather(t, [[ids]])
        CHECK-NEXT: %[[zeros:.*]] = ZerosLike([[rows]])
        CHECK-NEXT: Select([[valid]], [[rows]], [[zeros]])
        CHECK-NOT: {{Segment|Sparse}}
    """)


def test_constant_tables_side_by_side_are_stacked_under_one_gather() -> None:
    def two() -> Any:
        tables = {"a": np.ones([5, 4], np.float32), "b": np.ones([3, 4], np.float32)}
        found = [
            stock.lookup(tf.constant(values), bags(1, name), Case())
            for name, values in tables.items()
        ]
        return tf.concat(found, 1, name="together")

    lowered(graph_of(two)).check("""
        CHECK: %[[tables:.*]] = const(float32[8, 4]:
        CHECK: %[[ids:.*]] = ConcatV2(a, b,
        CHECK-NEXT: %[[starts:.*]] = const(int64[2]:[0, 5])
        CHECK-NEXT: AddV2([[ids]], [[starts]])
        CHECK-COUNT-1: %[[rows:.*]] = GatherV2([[tables]],
        CHECK-NOT: {{Gather|Segment}}
        CHECK: %together = Reshape(
    """)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_chain_of_fused_ops_is_one_op_or_stock_ops(version: str) -> None:
    def chain(table: Any, ids: Any, case: Case) -> Any:
        return fused_safe_embedding_lookup_sparse(table, ids, fusion_version=version)

    graph_def = build_with(chain)
    printed(graph_def).check("""
        CHECK: {{FusedEmbeddingSparsePreLookUp|PruneInvalidAndFillEmptyRows}}(
        CHECK: ResourceGather(table,
        CHECK: = FusedEmbeddingSparsePostLookUp
    """)
    fused(graph_def).check("""
        CHECK: %[[table:.*]] = ReadEmbeddingTables(table)
        CHECK-NEXT: %[[result:.*]] = FusedEmbeddingLookup([[table]], ids/values, ids/indices,
        CHECK-NEXT: %out = Identity([[result]])
    """)
    lowered(graph_def).check("""
        CHECK-NOT: Gather({{.*}}table
        CHECK: %[[fill:.*]] = SparseFillEmptyRows(
        CHECK: %[[rows:.*]] = SparseSegmentMean({{.*}}, [[fill]]:1,
        CHECK: %[[result:.*]] = Select([[fill]]:2, {{.*}}, [[rows]])
        CHECK-NEXT: %out = Identity([[result]])
    """)


def test_a_fused_op_is_lowered() -> None:
    once = FuseLookups(PRESERVE).apply(build(Case(combiner="sqrtn", default_id=3))).graph_def
    lowered(once).check("""
        CHECK-NOT: {{Fused|ReadEmbeddingTables}}
        CHECK: %[[table:.*]] = ReadVariableOp(table)
        CHECK: %[[default:.*]] = const(int64[]:3)
        CHECK-NEXT: %[[fill:.*]] = SparseFillEmptyRows({{.*}}, [[default]])
        CHECK: %[[result:.*]] = SparseSegmentSqrtN([[table]], [[fill]]:1,
        CHECK-NEXT: %out = Identity([[result]])
    """)


def test_a_group_is_taken_apart() -> None:
    def three() -> Any:
        number = v1.placeholder(tf.float32, [None, 2], "number")
        return tf.concat([column("a"), number, column("b", case=Case(combiner="sum"))], 1, "group")

    once = FuseLookups(PRESERVE).apply(graph_of(three)).graph_def
    lowered(once).check("""
        CHECK-NOT: Grouped
        CHECK: %[[a:.*]] = ReadVariableOp(a_table)
        CHECK: %[[b:.*]] = ReadVariableOp(b_table)
        CHECK: SparseSegmentMean([[a]],
        CHECK: %[[first:.*]] = Select(
        CHECK: SparseSegmentSum([[b]],
        CHECK: %[[second:.*]] = Select(
        CHECK: %group = ConcatV2([[first]], number, [[second]], {{.*}}) {N=3
    """)


def test_a_trained_lookup_is_not_lowered() -> None:
    lowered(build_with(trained)).check("""
        CHECK: %[[fill:.*]] = SparseFillEmptyRows(
        CHECK: %[[unique:.*]] = Unique([[fill]]:1)
        CHECK: ResourceGather(table, [[unique]])
        CHECK: SparseSegmentMeanGrad
    """)


def test_ids_of_shards_are_partitioned_by_stock_ops() -> None:
    lowered(build(Case(shards=2, strategy="mod"))).check("""
        CHECK: %[[unique:.*]] = Unique(
        CHECK: %[[modulo:.*]] = FloorMod([[unique]],
        CHECK-NEXT: %[[shard:.*]] = Cast([[modulo]])
        CHECK-NEXT: %[[row:.*]] = FloorDiv([[unique]],
        CHECK: %[[ids:.*]] = DynamicPartition([[row]], [[shard]])
        CHECK: %[[first:.*]] = ResourceGather(table_0, [[ids]])
        CHECK-NEXT: %[[second:.*]] = ResourceGather(table_1, [[ids]]:1)
        CHECK-NEXT: %[[rows:.*]] = ParallelDynamicStitch({{.*}}, [[first]], [[second]])
        CHECK-NEXT: SparseSegmentMean([[rows]], [[unique]]:1,
    """)
