"""Lookups become ops around gathers of distinct ids, with the same bits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.gather_lookups import GatherLookups
from fusion.schema.names import POST_V2, SINGLE, UNIQUE
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case
from tests.reference import assert_same_bits

PRESERVE = frozenset({"out", "initialize"})
PASS, FUSE = GatherLookups(PRESERVE), FuseLookups(PRESERVE)

CASES = [
    Case(),
    Case("constant", "sum", 3),
    Case("resource", "sqrtn", 0, fast=True),
    Case(ids=tf.int32),
    Case(dtype=tf.float16),
    Case(rank=3),
    Case(weighted=True),
]


def ops(graph_def) -> Counter[str]:
    return Counter(node.op for node in graph_def.node)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("is_fused", [False, True])
def test_the_same_bits(case: Case, is_fused: bool) -> None:
    before = stock.build(case)
    given = FUSE.apply(before).graph_def if is_fused else before
    result = PASS.apply(given)
    assert result.modified
    assert result.report.fused_count == len(result.report.columns) == 1
    found = ops(result.graph_def)
    assert found[UNIQUE] == found[POST_V2] == 1
    assert found[SINGLE] == 0
    assert found["ResourceGather"] + found["GatherV2"] >= 1
    for seed in (1, 2):
        feed = stock.feeds(case, seed)
        assert_same_bits(*stock.run(result.graph_def, feed), *stock.run(before, feed))


@pytest.mark.parametrize("is_fused", [False, True])
def test_dense_sums_are_stock_ones_behind_a_gather(is_fused: bool) -> None:
    table = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None, 3], "ids")
        rows = tf.gather(tf.constant(table, name="table"), ids)
        tf.identity(tf.reduce_mean(rows, 1), "out")
        tf.no_op("initialize")
    before = graph.as_graph_def()
    given = FUSE.apply(before).graph_def if is_fused else before
    after = PASS.apply(given).graph_def
    assert not {SINGLE, UNIQUE} & {*ops(after)}
    assert ops(after)["GatherV2"] == 1
    feed = {"ids:0": np.random.default_rng(1).integers(0, 20, (9, 3))}
    assert_same_bits(*stock.run(after, feed), *stock.run(before, feed))


def test_a_graph_without_lookups_stays_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.constant([1.0, 2.0]) * 3.0, "out")
    before = graph.as_graph_def()
    result = PASS.apply(before)
    assert not result.modified
    assert result.graph_def is before
    assert PASS.explain(before).columns == ()


def _one_hot(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(ids[:, 0], 20) @ table


def _bag_of_one_hots(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.one_hot(ids, 20), 1) @ table


def _masked(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    mask = tf.cast(ids > 0, tf.float32)[..., tf.newaxis]
    return tf.reduce_sum(tf.gather(table, ids) * mask, 1) / (tf.reduce_sum(mask, 1) + 1e-8)


def _largest(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(tf.gather(table, ids), 1)


@pytest.mark.parametrize("form", [_one_hot, _bag_of_one_hots, _masked, _largest])
@pytest.mark.parametrize("is_fused", [False, True])
def test_other_forms(form, is_fused: bool) -> None:
    table = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None, 3], "ids")
        tf.identity(form(ids, tf.constant(table, name="table")), "out")
        tf.no_op("initialize")
    before = graph.as_graph_def()
    given = FUSE.apply(before).graph_def if is_fused else before
    after = PASS.apply(given).graph_def
    assert SINGLE not in ops(after)
    feed = {"ids:0": np.random.default_rng(1).integers(0, 20, (9, 3))}
    assert_same_bits(*stock.run(after, feed), *stock.run(before, feed))
