"""Lookups become fewer stock ops, and fused ones stock ops again: the same bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.lookup import VERSIONS
from fusion.lookup import fused_safe_embedding_lookup_sparse as fused_lookup
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import OP_NAMES
from tests.differential.run import like
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import PASS, build_with, nodes, refused, to_sparse
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
LOWER = LowerLookups(PASS.preserve)

CASES = [
    Case(),
    Case(fast=True),
    Case(default_id=3),
    Case(combiner="sum", ids=tf.int32, table="constant"),
    Case(combiner="sqrtn", table="ref", default_id=0),
    Case(dtype=tf.float16, combiner="sum"),
    Case(dtype=tf.bfloat16),
    Case(dtype=tf.float64, combiner="sqrtn", rank=3),
    Case(rank=None, combiner="sum"),
    Case(ragged=True),
    Case(ragged=True, combiner="sum", default_id=3, ids=tf.int32),
    Case(weighted=True),
    Case(weighted=True, combiner="sqrtn", default_id=3),
    Case(weighted=True, combiner="sum", ragged=True),
    Case(weighted=True, dtype=tf.float16),
    Case(weighted=True, dtype=tf.bfloat16, combiner="sqrtn", max_norm=0.7),
    Case(max_norm=0.7),
    Case(max_norm=0.7, dtype=tf.float16, combiner="sum"),
    Case(shards=3),
    Case(shards=3, strategy="mod", table="ref", default_id=3),
    Case(shards=3, max_norm=0.7, dtype=tf.float64, strategy="mod"),
    Case(shards=3, weighted=True, combiner="sum", table="constant"),
]


def ops(graph_def: graph_pb2.GraphDef) -> Counter[str]:
    """The ops that run for the result."""
    needed = v1.graph_util.extract_sub_graph(graph_def, ["out"])
    return Counter(node.op for node in needed.node)


def lowered(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with stock ops; all of its lookups have to be understood."""
    result = LOWER.apply(graph_def)
    assert result.modified
    assert result.report.fused_count == len(result.report.columns) > 0, str(result.report)
    assert not set(ops(result.graph_def)) & {*OP_NAMES}
    return result.graph_def


def assert_same(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef, feed: Any) -> None:
    for result, expected in zip(stock.run(after, feed), stock.run(before, feed), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        assert result.tobytes() == expected.tobytes()


def assert_close(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef, feed: Any) -> None:
    for result, expected in zip(stock.run(after, feed), stock.run(before, feed), strict=True):
        rtol = 2e-2 if expected.dtype.itemsize == 2 else 1e-5
        one, other = result.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fewer_stock_ops_have_the_bits_of_the_many(case: Case) -> None:
    before = stock.build(case)
    after = lowered(before)
    found, before_ops = ops(after), ops(before)
    assert found.total() - found["Const"] < before_ops.total() - before_ops["Const"]
    assert "Tile" not in found
    assert found["SparseReshape"] <= 1
    assert case.rank != 2 or "Prod" not in found
    assert found["Unique"] == (case.shards > 1 or case.max_norm is not None)
    assert_same(before, after, stock.feeds(case))
    assert_same(before, after, stock.feeds(case, batch=1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_ids_and_no_rows(case: Case) -> None:
    before = stock.build(case)
    after, feed = lowered(before), stock.feeds(case)
    empty = {name: array[:0] for name, array in feed.items() if "shape" not in name}
    if case.ragged:
        rows = [empty | {"ids/row_splits:0": np.zeros(n + 1, np.int64)} for n in (4, 1)]
    else:
        shape = feed["ids/shape:0"]
        rows = [empty | {"ids/shape:0": np.array([n, *shape[1:]])} for n in (4, 0)]
    for some in rows:
        assert_same(before, after, some)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_lookups_become_stock_ones_again(case: Case) -> None:
    before = stock.build(case)
    after = lowered(PASS.apply(before).graph_def)
    feed = stock.feeds(case)
    if case.max_norm is None or case.shards > 1:
        assert_same(before, after, feed)
    else:  # the ops of tf.clip_by_norm, of which Grappler may have rearranged some
        assert_close(before, after, feed)


@pytest.mark.parametrize("case", [case for case in CASES if not case.fast], ids=str)
@pytest.mark.parametrize("version", VERSIONS)
def test_lookups_written_with_fused_ops_become_stock_ones(version: str, case: Case) -> None:
    if case.rank != 2:
        case = replace(case, rank=2)

    def edit(table: Any, ids: Any, case: Case) -> tf.Tensor:
        weights = None
        if case.weighted:
            values = v1.placeholder(case.dtype, [None], "weights")
            weights = like(ids, values)
        return fused_lookup(
            table,
            ids,
            weights,
            combiner=case.combiner,
            default_id=case.default_id,
            max_norm=case.max_norm,
            partition_strategy=case.strategy,
            fusion_version=version,
        )

    before = build_with(edit, case)
    after, feed = lowered(before), stock.feeds(case)
    if case.is_exact:
        assert_same(before, after, feed)
        return
    assert_close(before, after, feed)


def test_entries_in_row_order_are_not_filled() -> None:
    """A Where finds them row by row, so that nothing has to sort them, or to count rows."""

    def edit(table: Any, ids: Any, case: Case) -> tf.Tensor:
        matrix = v1.placeholder(tf.int64, [None, 3], "matrix")
        return stock.lookup(table, to_sparse(matrix), case)

    before = build_with(edit)
    after = lowered(before)
    assert not {"SparseFillEmptyRows", "Select", "Unique"} & set(ops(after))
    assert ops(after)["SparseSegmentMeanWithNumSegments"] == 1
    matrix = np.array([[1, 1, 1], [2, -1, 5], [-3, 1, 1], [0, 2, 2]])
    assert_same(before, after, {"matrix:0": matrix})
    assert_same(before, after, {"matrix:0": matrix[:0]})


@pytest.mark.parametrize("default", [None, 3])
def test_one_id_per_row_is_a_gather(default: int | None) -> None:
    case = Case(default_id=default)

    def edit(table: Any, ids: Any, case: Case) -> tf.Tensor:
        matrix = v1.placeholder(tf.int64, [None, 1], "matrix")
        return stock.lookup(table, to_sparse(matrix), case)

    before = build_with(edit, case)
    after = lowered(before)
    assert not {name for name in ops(after) if "Segment" in name or "Sparse" in name}
    assert ops(after)["ResourceGather"] == 1
    assert ops(after)["Select"] == (default is None)
    assert_same(before, after, {"matrix:0": np.array([[1], [-1], [0], [7], [-5]])})
    assert_same(before, after, {"matrix:0": np.zeros((0, 1), np.int64)})
    for graph in (before, after):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(graph, {"matrix:0": np.array([[2], [stock.ROWS]])})


@pytest.mark.parametrize("wrong", [stock.ROWS, 2**40])
@pytest.mark.parametrize("case", [Case(), Case(weighted=True), Case(shards=3)], ids=str)
def test_ids_outside_the_table_are_the_same_error(case: Case, wrong: int) -> None:
    before = stock.build(case)
    feed = stock.feeds(case)
    feed["ids/values:0"] = np.full_like(feed["ids/values:0"], wrong)
    for graph in (before, lowered(before)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(graph, feed)


def test_a_second_time_there_is_nothing_to_gain() -> None:
    once = lowered(stock.build(Case(shards=3)))
    assert not LOWER.apply(once).modified
    (column,) = refused_columns(lowered(stock.build(Case(combiner="sum", ragged=True))))
    assert column.reason == "it has as few stock ops as it can have"


def refused_columns(graph_def: graph_pb2.GraphDef) -> tuple[Any, ...]:
    result = LOWER.apply(graph_def)
    assert not result.modified
    return result.report.columns


def test_a_lookup_without_fill_or_distinct_ids_is_left_as_it_is() -> None:
    def edit(table: Any, ids: Any, case: Case) -> tf.Tensor:
        return tf.raw_ops.SparseSegmentMean(
            data=tf.identity(table), indices=ids.values, segment_ids=ids.indices[:, 0]
        )

    column = refused(build_with(edit), LOWER)
    assert column.reason == "it has as few stock ops as it can have"


def test_a_lookup_with_a_gradient_is_left_as_it_is() -> None:
    def edit(table: Any, ids: Any, case: Case) -> tf.Tensor:
        result = stock.lookup(table, ids, case)
        (gradient,) = v1.gradients(result, [table])
        return tf.concat([result, tf.convert_to_tensor(gradient)], 0)

    column = refused(build_with(edit), LOWER)
    assert column.reason == "its gradient is in the graph, which reads what is inside it"


def test_rows_written_one_by_one_are_gathered() -> None:
    """Such a variable is never read whole, which would copy it."""
    before = stock.build(Case())
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(before, name="")
        handle = graph.get_tensor_by_name("table:0")
        rows = tf.zeros([1, stock.DIM])
        tf.raw_ops.ResourceScatterAdd(resource=handle, indices=[0], updates=rows, name="write")
        before = graph.as_graph_def(add_shapes=True)
    rewrite = replace(LOWER, preserve=frozenset({"out", "initialize", "write"}))
    after = rewrite.apply(before).graph_def
    assert {"ResourceGather", "Unique"} <= set(ops(after))
    assert "DisableCopyOnRead" not in ops(after)
    assert_same(before, after, stock.feeds(Case()))


def test_names_and_inputs_of_others_stay() -> None:
    before = stock.build(Case())
    after = nodes(lowered(before))
    for name, node in nodes(before).items():
        if node.op in ("Placeholder", "VarHandleOp") or name in ("out", "initialize"):
            assert after[name] == node


def test_the_public_function_knows_both_targets() -> None:
    before = stock.build(Case())
    result = fusion.fuse_graph(before, ["out", "initialize"], target="stock")
    assert result.graph_def == lowered(before)
    with pytest.raises(ValueError, match="target must be one of fused, stock, got 'xla'"):
        fusion.fuse_graph(before, target="xla")


def test_equal_graphs_give_equal_graphs() -> None:
    graphs = [LOWER.apply(stock.build(Case(shards=3, weighted=True))).graph_def for _ in range(2)]
    one, other = (graph.SerializeToString(deterministic=True) for graph in graphs)
    assert one == other


def test_functions_are_rewritten_too() -> None:
    table = tf.Variable(stock.table_values())

    @tf.function(autograph=False)
    def look_up(matrix: tf.Tensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(table, to_sparse(matrix), combiner="sum")

    concrete = look_up.get_concrete_function(tf.TensorSpec([None, 4], tf.int64))
    graph_def = graph_pb2.GraphDef()
    graph_def.library.function.add().CopyFrom(concrete.function_def)
    result = LowerLookups().apply(graph_def)
    assert [column.form for column in result.report.columns] == ["stock"]
    (function,) = result.graph_def.library.function
    assert "Unique" not in {node.op for node in function.node_def}
