"""Rewritten graphs give the stock graph's numbers, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion  # noqa: F401  (registers the ops)
from fusion.passes.fuse_lookups import FuseLookups
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case
from tests.reference import assert_same_bits

PASS = FuseLookups(preserve=frozenset({"out", "initialize"}))
CASES = [
    *(
        Case(table, combiner, default_id, fast)
        for table, combiner, default_id, fast in itertools.product(
            ("resource", "constant"), ("sum", "mean", "sqrtn"), (None, 0, 3), (False, True)
        )
    ),
    *(Case("ref", combiner, None, fast) for combiner in ("sum", "mean") for fast in (False, True)),
    *(Case(ids=tf.int32, combiner=combiner) for combiner in ("sum", "mean", "sqrtn")),
    *(Case(dtype=tf.float64, combiner=combiner) for combiner in ("sum", "mean", "sqrtn")),
    *(
        Case(table, combiner, default_id, fast, dtype=dtype)
        for table, default_id, fast in (("resource", None, False), ("constant", 3, True))
        for combiner, dtype in itertools.product(
            ("sum", "mean", "sqrtn"), (tf.float16, tf.bfloat16)
        )
    ),
    *(Case("ref", dtype=dtype, fast=True) for dtype in (tf.float16, tf.bfloat16)),
    *(Case(rank=rank, default_id=d) for rank in (3, 4, None) for d in (None, 2)),
]


def fused(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    result = PASS.apply(graph_def)
    assert result.report.fused_count == len(result.report.columns) == 1, str(result.report)
    return result.graph_def


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rewritten_graph_gives_the_same_bits(case: Case) -> None:
    graph_def = stock.build(case)
    rewritten = fused(graph_def)
    for seed in (1, 2):
        feed = stock.feeds(case, seed)
        assert_same_bits(*stock.run(rewritten, feed), *stock.run(graph_def, feed))


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_so_does_the_rewritten_optimized_graph(case: Case) -> None:
    graph_def = stock.build(case)
    rewritten = fused(stock.optimized(graph_def))
    feed = stock.feeds(case, 3)
    assert_same_bits(*stock.run(rewritten, feed), *stock.run(graph_def, feed))


@pytest.mark.parametrize("default_id", [None, 2])
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (3, 5)])
def test_no_ids_at_all(shape: tuple[int, int], default_id: int | None) -> None:
    case = Case(default_id=default_id)
    feed = stock.feeds(case)
    feed |= {"ids/indices:0": np.zeros((0, 2), np.int64), "ids/values:0": np.zeros(0, np.int64)}
    feed["ids/shape:0"] = np.array(shape, np.int64)
    graph_def = stock.build(case)
    np.testing.assert_array_equal(stock.run(fused(graph_def), feed), stock.run(graph_def, feed))


def test_an_id_outside_the_table_still_raises() -> None:
    case = Case()
    feed = stock.feeds(case)
    feed["ids/values:0"][0] = stock.ROWS
    for graph_def in (stock.build(case), fused(stock.build(case))):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(graph_def, feed)
