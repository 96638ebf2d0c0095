"""The stock ops that lookups were made of are met again: they are fused, or made of as few ops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
KEEP = frozenset({"out", "initialize"})
FUSE, LOWER = FuseLookups(preserve=KEEP), LowerLookups(preserve=KEEP)
CASES = [
    replace(case, table=table)
    for table in ("resource", "constant")
    for case in (
        Case(),
        Case(combiner="sum", ids=tf.int32),
        Case(combiner="sqrtn", dtype=tf.float64),
        Case(default_id=2),
        Case(fast=True),
        Case(ragged=True),
        Case(shards=2, strategy="mod"),
        Case(dtype=tf.bfloat16),
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_lookup_made_of_stock_ops_is_fused_with_the_same_bits(case: Case) -> None:
    graph_def = LOWER.apply(stock.build(case)).graph_def
    result = FUSE.apply(graph_def)
    (column,) = result.report.columns
    assert column.fused, str(column)
    feed = stock.feeds(case)
    if not case.ragged:
        # Stock ops ask for entries in the order of rows.
        order = np.argsort(feed["ids/indices:0"][:, 0], kind="stable")
        feed |= {key: feed[key][order] for key in ("ids/indices:0", "ids/values:0")}
    (expected,) = stock.run(graph_def, feed, optimize=False)
    (got,) = stock.run(result.graph_def, feed)
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))
    assert not FUSE.apply(result.graph_def).modified
    assert not LOWER.apply(graph_def).modified


def counted(number: int, dtype: tf.DType = tf.int64) -> tuple[graph_pb2.GraphDef, stock.Feeds]:
    """A sum over the table itself of ids whose rows are given, and their number."""
    with tf.Graph().as_default() as graph:
        table = tf.constant(stock.table_values())
        ids, rows = (v1.placeholder(tf.int64, [None], name) for name in ("ids", "rows"))
        count = v1.placeholder_with_default(tf.constant(number, dtype), [], "count")
        total = tf.raw_ops.SparseSegmentSumWithNumSegments(
            data=table, indices=ids, segment_ids=rows, num_segments=count
        )
        tf.identity(total, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(), {
            "ids:0": np.array([3, 1, 2, 2]),
            "rows:0": np.array([0, 0, 2, 3]),
        }


def test_a_sum_of_a_given_number_of_rows_is_fused() -> None:
    graph_def, feed = counted(6)
    result = FUSE.apply(graph_def)
    assert result.report.fused_count == 1
    (expected,) = stock.run(graph_def, feed, optimize=False)
    assert expected.shape == (6, stock.DIM)
    np.testing.assert_array_equal(stock.run(result.graph_def, feed)[0], expected)


def test_rows_behind_the_given_number_are_an_error() -> None:
    graph_def, feed = counted(3)
    for one in (graph_def, FUSE.apply(graph_def).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(one, feed, optimize=False)


def test_a_number_of_rows_as_int32_stays() -> None:
    (column,) = FUSE.explain(counted(6, tf.int32)[0]).columns
    assert column.reason == "the number of rows is no int64"
