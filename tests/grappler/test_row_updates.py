"""Row updates of stock optimizers, in ops that take all rows at once: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.grappler.executed import executed
from tests.grappler.training_steps import Column, train, train_both

v1 = tf.compat.v1
UPDATE = "FusedEmbeddingRowUpdate"
SCATTERS = ("ResourceScatterAdd", "ResourceScatterSub")
COLUMNS = [Column("mean"), Column("sum"), Column("sqrtn", weighted=True)]


def test_a_training_step():
    stock, fused = train_both(COLUMNS, "sgd", row_updates=True)
    fused.assert_close(stock)
    assert (stock.count(UPDATE), stock.count(*SCATTERS)) == (0, 3)
    assert (fused.count(UPDATE), fused.count(*SCATTERS)) == (3, 0)
    report = fusion.stats().last_report
    assert report is not None
    assert [update.fused for update in report.updates] == [True] * 3


def test_the_bits_of_unweighted_columns():
    stock, fused = train_both(COLUMNS[:2], "sgd", steps=10, row_updates=True)
    fused.assert_same(stock)
    assert fused.count(UPDATE) == 2


def test_columns_that_share_a_table_stay():
    """Their gradients are one behind the other, with ids that both have."""
    columns = [Column(table=0), Column("sum", table=0)]
    stock, fused = train_both(columns, "sgd", row_updates=True)
    fused.assert_same(stock)
    assert fused.count(*SCATTERS) == stock.count(*SCATTERS) == 1
    report = fusion.stats().last_report
    assert report is not None
    (update,) = report.updates
    assert update.reason == "ids of updated rows may be repeated"


def test_updates_that_are_understood_later_than_the_lookups():
    """TensorFlow's optimizers tell the rank of these updates after they have run once more."""
    with fusion.fused(row_updates=True):
        run = train([Column(weighted=True, options={"max_norm": 1.0})] * 2, "sgd")
    assert run.count(UPDATE) == 2
    report = fusion.stats().last_report
    assert report is not None
    assert report.fused_count == len(report.columns) == 2
    assert [update.fused for update in report.updates] == [True] * 2
    assert "2 of 2 columns fused" in str(report)
    assert "  2 of 2 row updates fused" in str(report)


def test_columns_of_fusion_itself():
    """The graph holds fused ops before it is looked at, and no stock lookup."""
    rng = np.random.default_rng(0)
    table = tf.Variable(rng.normal(size=(20, 4)).astype(np.float32))
    ids = tf.sparse.from_dense(rng.integers(0, 20, (8, 3)))

    def step():
        with tf.GradientTape() as tape:
            vectors = fusion.fused_embedding_lookup_sparse_v2(table, ids, None, combiner="sum")
            loss = tf.reduce_sum(vectors**2)
        gradient = tape.gradient(loss, table)
        slices = tf.IndexedSlices(gradient.values * 0.1, gradient.indices)
        table.scatter_sub(slices)
        return loss

    start, results = table.numpy(), []
    for fuses in (False, True):
        table.assign(start)
        made = tf.function(step)
        with fusion.fused(row_updates=True) if fuses else executed():
            made()
        with executed() as ran:
            made()
        assert (ran[UPDATE], ran["ResourceScatterSub"]) == ((1, 0) if fuses else (0, 1))
        assert ran["FusedEmbeddingSparsePostLookUpV2Grad"] == 1
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("resource", [True, False])
def test_a_v1_session(resource):
    """Reference variables have scatter ops of their own, which stay."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(20, 4)).astype(np.float32)
    ids = rng.integers(0, 20, (8, 3))

    def train_in_session():
        with tf.Graph().as_default(), v1.Session() as session:
            table = v1.get_variable("table", initializer=start, use_resource=resource)
            vectors = tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(ids))
            loss = tf.reduce_sum(vectors**2)
            train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run(train_op)
            with executed() as ran:
                session.run(train_op)
            return session.run(table), ran

    stock, _ = train_in_session()
    with fusion.fused(row_updates=True):
        fused, ran = train_in_session()
    np.testing.assert_array_equal(fused, stock)
    assert ran[UPDATE] == int(resource)


def test_nobody_is_updated_so_unasked():
    with fusion.fused():
        run = train(COLUMNS, "sgd")
        report = fusion.stats().last_report
    assert (run.count(UPDATE), run.count(*SCATTERS)) == (0, 3)
    assert report is not None
    assert report.updates == ()


def test_the_switch():
    ids = tf.sparse.from_dense([[1], [2]])

    def updates():
        table = tf.Variable(tf.ones([5, 3]))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(table, ids))
            gradient = tape.gradient(loss, table)
            table.scatter_sub(tf.IndexedSlices(gradient.values, gradient.indices))

        step()
        with executed() as ran:
            step()
        assert ran[UPDATE] + ran["ResourceScatterSub"] == 1
        return ran[UPDATE]

    try:
        fusion.enable(row_updates=True)
        assert updates() == 1
        fusion.enable()
        assert updates() == 0
        with fusion.fused(row_updates=True):
            assert updates() == 1
            with fusion.fused():
                assert updates() == 1
        assert updates() == 0
        fusion.enable(row_updates=True)
    finally:
        fusion.disable()
    assert updates() == 0
    with fusion.fused():
        assert updates() == 0


def test_only_the_branch_that_is_taken_updates():
    def train_by(first):
        tables = [tf.Variable(tf.ones([5, 3]) * (n + 1)) for n in range(3)]
        ids = tf.sparse.from_dense([[1], [2]])

        def update(table):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(table, ids) ** 2)
            gradient = tape.gradient(loss, table)
            table.scatter_sub(tf.IndexedSlices(gradient.values * 0.1, gradient.indices))

        @tf.function
        def step(first):
            update(tables[2])
            if first:
                update(tables[0])
            else:
                update(tables[1])

        for _ in range(2):
            step(tf.constant(first))
        with executed() as ran:
            step(tf.constant(first))
        return [table.numpy() for table in tables], ran[UPDATE]

    for first in (True, False):
        stock, _ = train_by(first)
        with fusion.fused(row_updates=True):
            fused, count = train_by(first)
        assert count > 0
        np.testing.assert_array_equal(fused, stock)
        moved = [bool(np.any(table != n + 1)) for n, table in enumerate(fused)]
        assert moved == [first, not first, True]
