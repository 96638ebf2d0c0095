"""The stock target where it is easily wrong: order, damaged input, a second run, single columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion import feature_column
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.targets import PASSES, Target
from fusion.schema.names import OP_NAMES
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import PASS, build_with, nodes
from tests.passes.stock_graphs import Case

TO_STOCK = LowerLookups(PASS.preserve)


def without_ignored(matrix: tf.Tensor) -> tf.SparseTensor:
    """As feature columns do it, which ignore -1."""
    indices = tf.where(tf.not_equal(matrix, -1))
    return tf.SparseTensor(indices, tf.gather_nd(matrix, indices), tf.shape(matrix, tf.int64))


def needs(graph_def: graph_pb2.GraphDef, name: str) -> set[str]:
    """The nodes that a node runs after."""
    found, seen, stack = nodes(graph_def), set[str](), [name]
    while stack:
        for text in found[stack.pop()].input:
            before = text.removeprefix("^").partition(":")[0]
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return seen


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("kind", ["values", "indices", "shape", "hashed", "weights"])
def test_a_table_is_read_after_a_write_that_the_ids_wait_for(kind: str, target: Target) -> None:
    def written_before(table: Any, ids: Any, case: Case) -> Any:
        write = tf.raw_ops.AssignVariableOp(
            resource=table.handle, value=tf.ones([stock.ROWS, stock.DIM]), name="write"
        )

        def after(tensor: Any, part: str) -> Any:
            if part != kind:
                return tensor
            with tf.control_dependencies([write]):
                return tf.identity(tensor)

        values, indices = after(ids.values, "values"), after(ids.indices, "indices")
        shape = after(ids.dense_shape, "shape")
        if kind == "hashed":
            matrix = after(tf.compat.v1.placeholder(tf.string, [None, 2], "text"), kind)
            indices = tf.where(tf.not_equal(matrix, ""))
            values = tf.strings.to_hash_bucket_fast(tf.gather_nd(matrix, indices), stock.ROWS)
            shape = tf.shape(matrix, tf.int64)
        sparse = tf.SparseTensor(indices, values, shape)
        if kind != "weights":
            return stock.lookup(table, sparse, case)
        weights = after(tf.compat.v1.placeholder(tf.float32, [None], "weights"), kind)
        weights = tf.SparseTensor(sparse.indices, weights, sparse.dense_shape)
        return stock.lookup(table, sparse, case, sparse_weights=weights)

    graph_def = build_with(written_before)
    result = PASSES[target](PASS.preserve).apply(graph_def)
    assert result.report.fused_count == 1
    needed = needs(result.graph_def, "out")
    reads = [
        name
        for name in sorted(needed)
        if nodes(result.graph_def)[name].op
        in ("ReadVariableOp", "ReadEmbeddingTables", "ResourceGather")
    ]
    assert reads
    for read in reads:
        assert "write" in needs(result.graph_def, read)


@pytest.mark.parametrize(
    "case", [Case(), Case(default_id=1), Case(weighted=True), Case(default_id=1, weighted=True)]
)
def test_a_negative_number_of_rows_is_an_error(case: Case) -> None:
    graph_def = stock.build(case)
    feed = stock.feeds(case)
    feed["ids/shape:0"] = np.array([-2, 12])
    for lowered in (TO_STOCK.apply(graph_def), TO_STOCK.apply(PASS.apply(graph_def).graph_def)):
        assert lowered.report.fused_count == 1
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(lowered.graph_def, feed)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("default_id", [None, 1])
def test_a_second_run_changes_nothing(
    default_id: int | None, rank: int, shards: int, weighted: bool
) -> None:
    case = Case(default_id=default_id, rank=rank, shards=shards, weighted=weighted)
    once = TO_STOCK.apply(stock.build(case))
    assert once.report.fused_count == 1
    again = TO_STOCK.apply(once.graph_def)
    assert not again.modified
    assert again.report.fused_count == 0


def test_a_group_of_one_column_becomes_stock_ops() -> None:
    column = feature_column.embedding_column(
        tf.feature_column.categorical_column_with_identity("ids", 10), 4, do_fusion="v2"
    )
    layer = feature_column.DenseFeatures([column])
    ids = tf.constant([[3], [-1], [9]], tf.int64)
    layer({"ids": ids})

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.int64)])
    def function(ids: tf.Tensor) -> Any:
        return layer({"ids": ids}, training=False)

    graph_def = function.get_concrete_function().graph.as_graph_def()
    assert "GroupedEmbeddingLookup" in {node.op for node in graph_def.node}
    lowered = LowerLookups().apply(graph_def)
    assert lowered.report.fused_count == 1
    assert not {node.op for node in lowered.graph_def.node} & {*OP_NAMES}
    with tf.Graph().as_default():
        tf.import_graph_def(lowered.graph_def, name="")  # every op is valid


@pytest.mark.parametrize("shape", [(0, 4), (5, 0)], ids=str)
def test_empty_tables_are_not_stacked(shape: tuple[int, int]) -> None:
    def side_by_side(table: Any, ids: Any, case: Case) -> Any:
        matrix = tf.compat.v1.placeholder(tf.int64, [None, 1], "matrix")
        tables = (np.ones(shape, np.float32), np.ones((5, shape[1]), np.float32))
        return tf.concat(
            [stock.lookup(tf.constant(t), without_ignored(matrix), case) for t in tables], 1
        )

    graph_def = build_with(side_by_side, Case(table="constant"))
    lowered = TO_STOCK.apply(graph_def)
    assert [column.form for column in lowered.report.columns] == ["stock"] * 2
    feed = {"matrix:0": np.array([[-1], [-1]])}
    if shape[0]:
        for one, other in zip(
            stock.run(lowered.graph_def, feed), stock.run(graph_def, feed), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(lowered.graph_def, feed)


@pytest.mark.parametrize("second", [(0, 1), (0, 2), (0,)], ids=str)
@pytest.mark.parametrize("rows", [50, 5000])
def test_a_large_table_is_not_held_twice(rows: int, second: tuple[int, ...]) -> None:
    def twice(table: Any, ids: Any, case: Case) -> Any:
        matrix = tf.compat.v1.placeholder(tf.int64, [None, 1], "matrix")
        tables = [tf.constant(np.ones((size, 4), np.float32)) for size in (rows, 3, 5)]

        def concat(order: tuple[int, ...]) -> tf.Tensor:
            looked_up = [stock.lookup(tables[k], without_ignored(matrix), case) for k in order]
            return tf.concat([*looked_up, tf.cast(matrix, tf.float32)], 1)

        return tf.concat([concat((0, 1)), tf.square(concat(second))], 1)

    graph_def = build_with(twice, Case(table="constant"))
    lowered = TO_STOCK.apply(graph_def)
    values = (node.attr["value"].tensor for node in lowered.graph_def.node if node.op == "Const")
    held = sum(
        size >= rows for value in values for size in (d.size for d in value.tensor_shape.dim)
    )
    is_shared = second == (0, 1)
    assert held == (1 if rows > 50 or is_shared else 2)
    forms = [column.form for column in lowered.report.columns]
    assert forms[0] == ("stacked" if rows == 50 or is_shared else "stock")


def test_more_rows_than_memory_are_an_error() -> None:
    def in_row_order(table: Any, ids: Any, case: Case) -> Any:
        return stock.lookup(table, tf.sparse.reorder(ids), case)

    graph_def = build_with(in_row_order)
    lowered = TO_STOCK.apply(graph_def).graph_def
    assert "SparseFillEmptyRows" not in {node.op for node in lowered.node}
    feed = stock.feeds(Case())
    for one, other in zip(stock.run(lowered, feed), stock.run(graph_def, feed), strict=True):
        np.testing.assert_array_equal(one, other)
    feed["ids/shape:0"] = np.array([2**40 + 7, 12])
    with pytest.raises(tf.errors.InvalidArgumentError):
        stock.run(lowered, feed)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 3)])
@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_max, tf.reduce_mean])
def test_bags_of_a_matrix_without_columns_have_its_rows(
    shape: tuple[int, int], reduce: Any
) -> None:
    """Behind a fused op, too."""
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None, None], "ids")
        rows = tf.gather(tf.constant(np.arange(20, dtype=np.float32).reshape(5, 4)), ids)
        tf.identity(reduce(rows, 1), name="out")
    before = graph.as_graph_def()
    fused = FuseLookups(frozenset({"out"})).apply(before).graph_def
    stock_again = LowerLookups(frozenset({"out"})).apply(fused).graph_def
    assert not {node.op for node in stock_again.node} & {*OP_NAMES}
    results = []
    for one in (before, fused, stock_again):
        with tf.Graph().as_default() as other:
            tf.import_graph_def(one, name="")
            with tf.compat.v1.Session(graph=other) as session:
                results.append(session.run("out:0", {"ids:0": np.zeros(shape, np.int64)}))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
