"""What FuseLookups and FuseUpdates make of small graphs, as directives over their text.

Names of results and inputs stand as they are, those of emitted nodes are captured; filecheck.py has
the directives. That the numbers are stock's is tested elsewhere: this is what rewrites look like.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from fusion.feature_column.single_ids import embed
from fusion.passes.fuse_updates import FuseUpdates
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import column, dense, graph_of, table
from tests.passes.printed_graphs import PRESERVE, Printed, bags, fused, printed, trained
from tests.passes.rewritten_graphs import ANCHOR, build_with, only, written_somewhere
from tests.passes.stock_graphs import Case, build

v1 = tf.compat.v1
fc = tf.feature_column


# One lookup, one op


def test_a_lookup_is_one_op_under_the_name_of_its_result() -> None:
    fused(build(Case())).check("""
        CHECK-NOT: SparseReshape
        CHECK-NOT: Unique
        CHECK: %[[weights:.*]] = const(float32[1]:[1.0])
        CHECK-NEXT: %[[table:.*]] = ReadEmbeddingTables(table) {{.*}} num_tables=1
        CHECK-SAME: class=loc:@table
        CHECK-NEXT: %embedding_lookup/Reshape_2 = FusedEmbeddingLookup(
        CHECK-SAME: [[table]], ids/values, ids/indices, ids/shape, [[weights]]) {
        CHECK-SAME: column_name='embedding_lookup of table table'
        CHECK-SAME: dim=6 fill_empty_row=True prune=True}
        CHECK-NEXT: %out = Identity(embedding_lookup/Reshape_2)
    """)


@pytest.mark.parametrize(
    ("combiner", "attr"), [("sum", " combiner='sum'"), ("mean", ""), ("sqrtn", " combiner='sqrtn'")]
)
def test_a_combiner_is_an_attr(combiner: str, attr: str) -> None:
    fused(build(Case(combiner=combiner))).check(f"""
        CHECK-NOT: Segment
        CHECK: FusedEmbeddingLookup
        CHECK-SAME: of table table'{attr} dim=6
    """)


def test_weights_are_an_input() -> None:
    """They prune entries too, unless rows are summed."""
    fused(build(Case(weighted=True))).check("""
        CHECK-NOT: unused_weights
        CHECK: FusedEmbeddingLookup({{.*}}, ids/values, ids/indices, ids/shape, weights)
        CHECK-SAME: prune=True prune_sparse_weights=True use_sparse_weights=True}
    """)
    fused(build(Case(weighted=True, combiner="sum"))).check("""
        CHECK: FusedEmbeddingLookup({{.*}}, weights)
        CHECK-SAME: prune=True use_sparse_weights=True}
    """)


def test_rows_are_clipped_by_the_op() -> None:
    fused(build(Case(max_norm=0.5))).check("""
        CHECK-NOT: clip
        CHECK: FusedEmbeddingLookup
        CHECK-SAME: max_norm=0.5
    """)


def test_a_default_id_is_an_attr() -> None:
    fused(build(Case(default_id=3))).check("""
        CHECK-NOT: {{SparseFillEmptyRows|Select}}
        CHECK: FusedEmbeddingLookup
        CHECK-SAME: default_id=3 dim=6 fill_empty_row=True
    """)


def test_ids_of_int32_are_not_cast() -> None:
    fused(build(Case(ids=tf.int32))).check("""
        CHECK: %ids/values = Placeholder() {dtype=int32
        CHECK-NOT: Cast
        CHECK: FusedEmbeddingLookup
        CHECK-SAME: Tids=int32 Trows=int64
    """)


def test_a_lookup_that_is_not_safe_neither_prunes_nor_fills() -> None:
    def plain(table: Any, ids: Any, case: Case) -> Any:
        return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")

    fused(build_with(plain)).check("""
        CHECK: %embedding_lookup_sparse = FusedEmbeddingLookup
        CHECK-NOT: {{prune|fill_empty_row}}
        CHECK-SAME: dim=6 row_count='last_row'}
    """)


# Forms of ids


def test_rows_of_entries_are_read_as_they_are() -> None:
    def by_row_ids(table: Any, ids: Any, case: Case) -> Any:
        rows = v1.placeholder(tf.int64, [None], "rows")
        ragged = tf.RaggedTensor.from_value_rowids(ids.values, rows, validate=False)
        return tf.nn.embedding_lookup_sparse(table, ragged, None, combiner="sum")

    fused(build_with(by_row_ids)).check("""
        CHECK: FusedEmbeddingLookup({{.*}}, ids/values, rows, {{.*}}/unused_number,
        CHECK-SAME: form='row_ids' row_count='last_row'}
    """)


def test_ragged_ids_are_read_by_their_row_splits() -> None:
    fused(build(Case(ragged=True))).check("""
        CHECK-NOT: RaggedTensorToSparse
        CHECK: FusedEmbeddingLookup({{.*}}, ids/values, ids/row_splits, {{.*}}/unused_number,
        CHECK-SAME: form='row_splits'
    """)


def test_a_matrix_of_ids_is_read_as_it_is() -> None:
    fused(graph_of(lambda: stock.lookup(table("t"), bags(3), Case()))).check("""
        CHECK-NOT: {{Where|GatherNd}}
        CHECK: FusedEmbeddingLookup({{.*}}/table, matrix, {{.*}}/unused_number,
        CHECK-SAME: form='dense' prune=True use_ignored_id=True}
    """)


def test_one_id_per_row_is_a_matrix_of_one_column() -> None:
    def single(table: Any, ids: Any, case: Case) -> Any:
        matrix = v1.placeholder(tf.int64, [None, 1], "matrix")
        return embed(tf.identity(table), tf.reshape(matrix, [-1]), None, fused=False)

    fused(build_with(single, Case(table="constant"))).check("""
        CHECK-NOT: {{Unique|Maximum|Reshape|Gather}}
        CHECK: FusedEmbeddingLookup({{[^,]*}}, matrix,
        CHECK-SAME: combiner='sum' dim=6 fill_empty_row=True form='dense' prune=True}
        CHECK-NOT: Select(
    """)


def test_buckets_are_found_by_the_op() -> None:
    def bucketized() -> Any:
        values = v1.placeholder(tf.float32, [None, 2], "values")
        return dense(tf.raw_ops.Bucketize(input=values, boundaries=[-1.5, 0, 2]), table("t"))

    fused(graph_of(bucketized)).check("""
        CHECK-NOT: Bucketize
        CHECK: FusedEmbeddingLookup({{.*}}/table, values, {{.*}}) {T=float Tids=float
        CHECK-SAME: boundaries=[-1.5, 0.0, 2.0]
        CHECK-SAME: column_stride=4 dim=6 fill_empty_row=True form='dense'
    """)


def test_ids_out_of_range_become_the_default_of_their_column_in_the_op() -> None:
    def identity() -> Any:
        ids = v1.placeholder(tf.int64, [None, 3], "ids")
        categories = fc.categorical_column_with_identity("ids", 19, default_value=2)
        return v1.feature_column.input_layer({"ids": ids}, [fc.embedding_column(categories, 6)])

    fused(graph_of(identity)).check("""
        CHECK-NOT: {{Less|LogicalOr|Select}}
        CHECK: FusedEmbeddingLookup({{.*}}/table, ids,
        CHECK-SAME: bucket_default=2
        CHECK-SAME: form='dense' num_buckets=19
    """)


# Tables


def test_a_reference_variable_is_read_as_before() -> None:
    fused(build(Case(table="ref"))).check("""
        CHECK: %table/read = Identity(table)
        CHECK-NOT: ReadEmbeddingTables
        CHECK: FusedEmbeddingLookup(table/read, ids/values,
    """)


def test_a_constant_is_a_table() -> None:
    fused(build(Case(table="constant"))).check("""
        CHECK: %table = Const()
        CHECK-NOT: ReadEmbeddingTables
        CHECK: FusedEmbeddingLookup(table, ids/values,
    """)


def test_a_table_of_which_rows_are_written_is_gathered_between_two_ops() -> None:
    """It is never read whole, which would copy it."""
    fused(written_somewhere(build(Case()))).check("""
        CHECK: %[[kept:.*]] = PruneInvalidAndFillEmptyRows(ids/values, ids/indices, ids/shape,
        CHECK-NEXT: %[[unique:.*]] = UniqueWithCountsV3([[kept]])
        CHECK-NOT: ReadEmbeddingTables
        CHECK: %[[rows:.*]] = ResourceGather(table, [[unique]])
        CHECK-NEXT: %embedding_lookup/Reshape_2 = FusedEmbeddingSparsePostLookUpV2([[rows]],
        CHECK-SAME: ids/shape, [[kept]]:1, [[kept]]:3, [[unique]]:1,
    """)


@pytest.mark.parametrize(("strategy", "attr"), [("div", ""), ("mod", " partition_strategy='mod'")])
def test_ids_are_partitioned_by_the_strategy_of_the_shards(strategy: str, attr: str) -> None:
    fused(build(Case(shards=2, strategy=strategy))).check(f"""
        CHECK: %[[unique:.*]] = UniqueWithCountsV3(
        CHECK: %[[shape:.*]] = const(int64[2]:[10, 6])
        CHECK-NEXT: %[[parts:.*]] = PartitionWithPermutation([[unique]], [[shape]], [[shape]])
        CHECK-SAME: {{Tid=int64 num_partitions=2{attr}}}
        CHECK-NEXT: %[[first:.*]] = ResourceGather(table_0, [[parts]])
        CHECK-NEXT: %[[second:.*]] = ResourceGather(table_1, [[parts]]:1)
        CHECK-NEXT: FusedEmbeddingSparsePostLookUpV2([[first]], [[second]], [[parts]]:2,
        CHECK-SAME: num_partitions=2
    """)


# Lookups side by side


def test_lookups_under_a_concat_are_one_op_of_its_name() -> None:
    def two() -> Any:
        parts = column("a", table("t", 3)), column("b", case=Case(combiner="sum", max_norm=0.5))
        return tf.concat(parts, 1, name="together")

    fused(graph_of(two)).check("""
        CHECK: %[[a:.*]] = ReadEmbeddingTables(t)
        CHECK-NEXT: %[[b:.*]] = ReadEmbeddingTables(b_table)
        CHECK-NEXT: %together = GroupedEmbeddingLookup([[a]], [[b]], a/ids/values, b/ids/values,
        CHECK-SAME: a/ids/indices, b/ids/indices, a/ids/shape, b/ids/shape
        CHECK-SAME: combiners=['mean', 'sum']
        CHECK-SAME: dims=[3, 6]
        CHECK-SAME: max_norms=[-1.0, 0.5]
        CHECK-NEXT: %out = Identity(together)
    """)


def test_a_matrix_between_lookups_is_copied() -> None:
    def three() -> Any:
        number = v1.placeholder(tf.float32, [None, 2], "number")
        return tf.concat([column("a"), number, column("b")], 1, name="together")

    fused(graph_of(three)).check("""
        CHECK: %together = GroupedEmbeddingLookup({{[^,]*}}, number, {{[^,]*}}, a/ids/values,
        CHECK-SAME: dims=[6, 2, 6]
        CHECK-SAME: forms=['indices', 'copy', 'indices']
        CHECK-NOT: ConcatV2
    """)


def test_a_concat_in_a_concat_is_part_of_the_op() -> None:
    def nested() -> Any:
        inner = tf.concat([column("a"), column("b")], 1, name="inner")
        return tf.concat([inner, column("c")], 1, name="outer")

    fused(graph_of(nested)).check("""
        CHECK-NOT: {{inner|ConcatV2}}
        CHECK: %outer = GroupedEmbeddingLookup(
        CHECK-SAME: a/ids/values, b/ids/values, c/ids/values
        CHECK-SAME: num_columns=3
        CHECK-NOT: {{inner|ConcatV2}}
    """)


def test_a_table_that_columns_share_is_read_once() -> None:
    def shared() -> Any:
        one = table("t")
        return tf.concat([column("a", one), column("b", one)], 1, name="together")

    fused(graph_of(shared)).check("""
        CHECK-COUNT-1: %[[table:.*]] = ReadEmbeddingTables(t)
        CHECK-NOT: ReadEmbeddingTables
        CHECK: GroupedEmbeddingLookup([[table]], [[table]], a/ids/values, b/ids/values,
    """)


# Training, and values inside a lookup


def test_a_trained_lookup_keeps_its_gather_between_ops_with_a_gradient() -> None:
    fused(build_with(trained)).check("""
        CHECK: %[[gather:.*]] = ResourceGather(table, [[pre:.*]]) {
        CHECK-NEXT: %[[rows:.*]] = Identity([[gather]])
        CHECK: %[[pre]] = GroupedEmbeddingPreLookUp(ids/values, ids/indices, ids/shape,
        CHECK-NEXT: %embedding_lookup/Reshape_2 = GroupedEmbeddingPostLookUp([[rows]],
        CHECK-SAME: [[pre]]:1, [[pre]]:2, [[pre]]:3) {{.*}} combiners=['mean']
        CHECK-NOT: {{Segment|Unique}}
        CHECK: GroupedEmbeddingPostLookUpGrad({{.*}}, [[rows]], [[pre]]:1, [[pre]]:2, [[pre]]:3)
        CHECK-NOT: {{Segment|Unique}}
    """)


def test_the_forward_alone_is_fused_where_others_read_distinct_ids() -> None:
    graph_def = build(Case())
    graph_def.node.add(name="spy", op="Identity", input=[f"{ANCHOR}/Unique"]).attr["T"].type = 9
    fused(graph_def, "spy").check("""
        CHECK: %[[fill:.*]] = SparseFillEmptyRows(
        CHECK-NEXT: %[[unique:.*]] = Unique([[fill]]:1)
        CHECK-NEXT: %[[rows:.*]] = ResourceGather(table, [[unique]])
        CHECK-NOT: Segment
        CHECK: FusedEmbeddingSparsePostLookUpV2([[rows]]/Identity,
        CHECK-SAME: [[fill]], [[fill]]:2, [[unique]]:1
        CHECK: %spy = Identity([[unique]])
    """)


def test_nothing_is_fused_where_a_product_inside_the_lookup_is_fetched() -> None:
    graph_def = build(Case(weighted=True))
    fused(graph_def, only(graph_def, "Mul").name).check("""
        CHECK-NOT: {{Fused|Grouped|ReadEmbeddingTables}}
        CHECK: %[[product:.*]] = Mul(
        CHECK: SegmentSum([[product]],
        CHECK-NOT: {{Fused|Grouped}}
    """)


def test_results_that_are_fetched_keep_their_names() -> None:
    def twice(table: Any, ids: Any, case: Case) -> Any:
        rows = tf.identity(stock.lookup(table, ids, case), name="rows")
        return tf.identity(rows, name="copy")

    fused(build_with(twice), "embedding_lookup/Reshape_2", "copy").check("""
        CHECK: %embedding_lookup/Reshape_2 = FusedEmbeddingLookup(
        CHECK-NEXT: %rows = Identity(embedding_lookup/Reshape_2)
        CHECK-NEXT: %copy = Identity(rows)
        CHECK-NEXT: %out = Identity(copy)
    """)


def test_lookups_in_functions_are_fused() -> None:
    def called(table: Any, ids: Any, case: Case) -> Any:
        return tf.function(lambda one: stock.lookup(table, one, case), autograph=False)(ids)

    fused(build_with(called)).check("""
        CHECK: StatefulPartitionedCall(ids/indices, ids/values, ids/shape, table)
        CHECK: function {{.*}}([[indices:.*]]: int64, [[values:.*]]: int64, [[shape:.*]]: int64,
        CHECK: FusedEmbeddingLookup({{.*}}:tables:0, [[values]], [[indices]], [[shape]],
        CHECK: return identity=
    """)


# Updates of tables


def updated(op: Any, factor: float | None = None, rank: int | None = 2) -> Printed:
    """A variable `t` that is read after `op` has changed some of its rows, after the pass."""
    raw = tf.raw_ops
    with tf.Graph().as_default() as graph:
        handle = raw.VarHandleOp(dtype=tf.float32, shape=[9, 3], shared_name="t", name="t")
        ids = v1.placeholder(tf.int64, [None], "ids")
        rows = v1.placeholder(tf.float32, [None, 3] if rank else None, "rows")
        rows = rows if factor is None else tf.multiply(rows, factor)
        update = op(resource=handle, indices=ids, updates=rows, name="scatter")
        with tf.control_dependencies([update]):
            raw.ReadVariableOp(resource=handle, dtype=tf.float32, name="out")
    return printed(FuseUpdates(PRESERVE).apply(graph.as_graph_def()).graph_def)


def test_an_update_of_rows_is_one_op() -> None:
    updated(tf.raw_ops.ResourceScatterAdd).check("""
        CHECK: %scatter = FusedEmbeddingUpdate(t, ids, rows)
        CHECK-SAME: program='scatter_add(v0,x0)'
        CHECK-NEXT: %out = ReadVariableOp(t, ^scatter)
    """)


def test_the_factor_of_an_update_is_in_its_program() -> None:
    updated(tf.raw_ops.ResourceScatterSub, factor=0.5).check("""
        CHECK: %[[number:.*]] = const(float32[]:0.5)
        CHECK-NOT: Mul(
        CHECK: %scatter = FusedEmbeddingUpdate(t, ids, rows, [[number]])
        CHECK-SAME: program='t0=mul(x0,s0);scatter_sub(v0,t0)'
        CHECK-NOT: ResourceScatterSub(
    """)


def test_an_update_that_may_be_one_number_stays() -> None:
    updated(tf.raw_ops.ResourceScatterAdd, rank=None).check("""
        CHECK-NOT: FusedEmbeddingUpdate
        CHECK: %scatter = ResourceScatterAdd(t, ids, rows)
        CHECK-NEXT: %out = ReadVariableOp(t, ^scatter)
    """)
