"""Ids that are cast to int64 between the rows that are filled and the lookup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import SINGLE, ops
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1

KEEP = frozenset({"out", "initialize"})
CASES = [
    Case(ids=tf.int32),
    Case(ids=tf.int32, combiner="sum", default_id=3),
    Case(ids=tf.int32, table="constant", fast=True),
    Case(ids=tf.int32, combiner="sqrtn", dtype=tf.float64),
    Case(ids=tf.int32, max_norm=1.5),
    Case(ids=tf.int32, shards=3, strategy="mod"),
]


def cast(case: Case) -> graph_pb2.GraphDef:
    """A graph of a case, with a cast behind the ids that are filled."""
    with tf.Graph().as_default() as graph:
        tf.identity(_lookup(case), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def _lookup(case: Case) -> tf.Tensor:
    """As feature columns of other libraries have it: the steps of the safe lookup, one by one."""
    table, ids = stock.make_table(case), stock.sparse_placeholder(case)
    kept = tf.sparse.retain(ids, ids.values >= 0)
    filled, is_row_empty = tf.sparse.fill_empty_rows(kept, case.default_id or 0)
    wide = tf.SparseTensor(filled.indices, tf.cast(filled.values, tf.int64), filled.dense_shape)
    result = v1.nn.embedding_lookup_sparse(
        table,
        wide,
        None,
        combiner=case.combiner,
        max_norm=case.max_norm,
        partition_strategy=case.strategy,
        allow_fast_lookup=case.fast,
    )
    if case.default_id is not None:
        return result
    mask = tf.tile(tf.reshape(is_row_empty, [-1, 1]), tf.stack([1, tf.shape(result)[1]]))
    return v1.where(mask, tf.zeros_like(result), result)


def feeds(case: Case) -> stock.Feeds:
    feed = dict(stock.feeds(case))
    if case.fast:
        order = np.argsort(feed["ids/indices:0"][:, 0], kind="stable")
        feed |= {key: feed[key][order] for key in ("ids/indices:0", "ids/values:0")}
    return feed


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_cast_ids_are_fused_with_the_same_numbers(case: Case) -> None:
    graph_def = cast(case)
    for optimized in (False, True):
        given = stock.optimized(graph_def) if optimized else graph_def
        result = FuseLookups(preserve=KEEP).apply(given)
        (column,) = result.report.columns
        assert column.form == "single", str(column)
        assert ops(result.graph_def).count(SINGLE) == 1
        compare(case, given, result.graph_def)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_stock_ops_for_cast_ids(case: Case) -> None:
    graph_def = cast(case)
    result = LowerLookups(preserve=KEEP).apply(graph_def)
    assert result.report.fused_count == 1
    compare(case, graph_def, result.graph_def)


def compare(case: Case, before: graph_pb2.GraphDef, after: graph_pb2.GraphDef) -> None:
    (expected,), (got,) = (stock.run(one, feeds(case), optimize=False) for one in (before, after))
    if case.is_exact:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_split_lookup_of_cast_ids_gathers_int32() -> None:
    case = Case(ids=tf.int32)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(cast(case), name="")
        unique = next(op for op in graph.get_operations() if op.type == "SparseFillEmptyRows")
        tf.identity(unique.outputs[2], name="flags")
        graph_def = graph.as_graph_def()
    result = FuseLookups(preserve=frozenset({"out", "flags", "initialize"})).apply(graph_def)
    (column,) = result.report.columns
    assert column.form == "split"
    compare(case, graph_def, result.graph_def)


def test_a_gradient_of_cast_ids_stays() -> None:
    def build() -> Any:
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(cast(Case(ids=tf.int32, table="constant")), name="")
            table = next(op for op in graph.get_operations() if op.name == "table").outputs[0]
            out = graph.get_tensor_by_name("out:0")
            (slices,) = tf.compat.v1.gradients(tf.reduce_sum(out * out), [table])
            tf.convert_to_tensor(slices, name="gradient")
            return graph.as_graph_def()

    keep = frozenset({"out", "gradient", "initialize"})
    (column, *_) = FuseLookups(preserve=keep).explain(build()).columns
    assert not column.fused or column.form == "forward"
