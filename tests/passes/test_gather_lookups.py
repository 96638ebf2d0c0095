"""Lookups become ops around gathers of distinct ids, with the same bits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.gather_lookups import GatherLookups
from fusion.schema.names import POST_V2, SINGLE, UNIQUE
from tests.golden import golden_graphs
from tests.passes import stock_graphs as stock
from tests.passes.runtime_graphs import FUSED, GRAPHS, made
from tests.passes.stock_graphs import Case
from tests.reference import assert_same_bits

PRESERVE = frozenset({"out", "initialize"})
ROWS = 100
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


def _few_classes(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(ids[:, 0], 20) @ table[:20]


def _side_by_side(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.gather(table, ids[:, 0]), tf.gather(table[:50], ids[:, 1])], 1)


def _masked(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    mask = tf.cast(ids > 0, tf.float32)[..., tf.newaxis]
    return tf.reduce_sum(tf.gather(table, ids) * mask, 1) / (tf.reduce_sum(mask, 1) + 1e-8)


def _largest(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(tf.gather(table, ids), 1)


def _one_hot(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(ids[:, 0], ROWS) @ table


def _bag_of_one_hots(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.one_hot(ids, ROWS), 1) @ table


def _sparse_product(ids: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    rows = tf.range(tf.size(ids, tf.int64)) // 3
    indices = tf.stack([rows, tf.reshape(ids, [-1])], 1)
    sparse = tf.SparseTensor(indices, tf.ones_like(indices[:, 0], tf.float32), [9, ROWS])
    return tf.sparse.sparse_dense_matmul(sparse, table)


PRODUCTS = (_one_hot, _bag_of_one_hots, _sparse_product)


@pytest.mark.parametrize("form", [_few_classes, _side_by_side, _masked, _largest, *PRODUCTS])
@pytest.mark.parametrize("is_fused", [False, True])
def test_other_forms(form, is_fused: bool) -> None:
    table = np.random.default_rng(0).normal(size=(ROWS, 32)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None, 3], "ids")
        tf.identity(form(ids, tf.constant(table, name="table")), "out")
        tf.no_op("initialize")
    before = graph.as_graph_def()
    given = FUSE.apply(before).graph_def if is_fused else before
    after = PASS.apply(given).graph_def
    assert SINGLE not in ops(after)
    feed = {"ids:0": np.random.default_rng(1).integers(0, 20, (9, 3))}
    (found,), (expected,) = stock.run(after, feed), stock.run(before, feed)
    if form in PRODUCTS:  # whose sums are in no order
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    else:
        assert_same_bits(found, expected)


@pytest.mark.parametrize("is_fused", [False, True])
def test_all_kinds_of_graphs(is_fused: bool) -> None:
    others = [made(name)[0] for name in (GRAPHS | FUSED) if not name.startswith("large")]
    for graph_def in (*golden_graphs(), *others):
        given = FUSE.apply(graph_def).graph_def if is_fused else graph_def
        after = PASS.apply(given).graph_def
        # Not all fused ops have stock ones, as where what they measure is not known.
        assert is_fused or SINGLE not in ops(after)
