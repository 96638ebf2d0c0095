"""Row updates of stock optimizers, in ops that take all rows at once: the same bits."""

from __future__ import annotations

import threading

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
    stock, fused = train_both(COLUMNS, "sgd")
    fused.assert_close(stock)
    assert (stock.count(UPDATE), stock.count(*SCATTERS)) == (0, 3)
    assert (fused.count(UPDATE), fused.count(*SCATTERS)) == (3, 0)
    report = fusion.stats().last_report
    assert report is not None
    assert [update.fused for update in report.updates] == [True] * 3


def test_the_bits_of_unweighted_columns():
    stock, fused = train_both(COLUMNS[:2], "sgd", steps=10)
    fused.assert_same(stock)
    assert fused.count(UPDATE) == 2


def test_columns_that_share_a_table_stay():
    """Their gradients are one behind the other, with ids that both have."""
    columns = [Column(table=0), Column("sum", table=0)]
    stock, fused = train_both(columns, "sgd")
    fused.assert_same(stock)
    assert fused.count(*SCATTERS) == stock.count(*SCATTERS) == 1
    report = fusion.stats().last_report
    assert report is not None
    (update,) = report.updates
    assert update.reason == "ids of updated rows may be repeated"


def test_lookups_that_stay_stock_are_updated_so_too():
    with fusion.fused():
        run = train([Column(weighted=True, options={"max_norm": 1.0})] * 2, "sgd")
    assert run.count(UPDATE) == 2


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
        with fusion.fused() if fuses else executed():
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
    with fusion.fused():
        fused, ran = train_in_session()
    np.testing.assert_array_equal(fused, stock)
    assert ran[UPDATE] == int(resource)


def test_threads_lose_no_update():
    """Each step adds one to rows that all steps have; without the lock some are lost."""
    threads, steps = 4, 150
    table = tf.Variable(tf.zeros([2000, 16]))
    ids = tf.sparse.from_dense(tf.reshape(tf.range(1, 2000, dtype=tf.int64), [-1, 1]))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            vectors = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="sum")
            loss = tf.reduce_sum(vectors)
        gradient = tape.gradient(loss, table)
        table.scatter_add(tf.IndexedSlices(gradient.values, gradient.indices))

    def work():
        for _ in range(steps):
            step()

    with fusion.fused():
        step()
        with executed() as ran:
            step()
    assert ran[UPDATE] == 1
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    values = table.numpy()
    np.testing.assert_array_equal(values[1:], threads * steps + 2)
    np.testing.assert_array_equal(values[0], 0)
