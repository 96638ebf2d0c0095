"""The row-sparse Adam of `tf.compat.v1`: checkpoints, names, partitioned tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion.optimizers import LazyAdamOptimizer
from tests import tables
from tests.optimizers.runs import BATCHES, RATE, TABLE

v1 = tf.compat.v1
OPTIMIZERS = {"lazy": LazyAdamOptimizer, "stock": v1.train.AdamOptimizer}


def train(which, steps, use_resource=True, save=None, restore=None):
    """All variables by name after some steps, from a checkpoint if one is given."""
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=TABLE, use_resource=use_resource)
        batch = BATCHES[0]
        gradient = tf.IndexedSlices(
            tf.constant(batch.values), tf.constant(batch.ids), tf.constant(TABLE.shape)
        )
        step = OPTIMIZERS[which](RATE).apply_gradients([(gradient, table)])
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        if restore:
            saver.restore(session, restore)
        for _ in range(steps):
            session.run(step)
        if save:
            saver.save(session, save)
        return session.run({variable.name: variable for variable in v1.global_variables()})


@pytest.mark.parametrize("which", [("lazy", "stock"), ("stock", "lazy")])
@pytest.mark.parametrize("use_resource", [True, False])
def test_either_restores_the_checkpoint_of_the_other(which, use_resource, tmp_path):
    path = str(tmp_path / "model")
    saved = train(which[0], 3, use_resource, save=path)
    restored = train(which[1], 0, use_resource, restore=path)
    assert sorted(saved) == [
        *("beta1_power:0", "beta2_power:0", "table/Adam:0", "table/Adam_1:0", "table:0")
    ]
    for name, value in saved.items():
        np.testing.assert_array_equal(restored[name], value)
        assert np.any(value)
    # Nothing is left out: going on is as if training had not been interrupted.
    on = train(which[0], 2, use_resource, restore=path)
    for name, value in train(which[0], 5, use_resource).items():
        np.testing.assert_array_equal(on[name], value)


def test_a_partitioned_table_moves_as_a_whole_one():
    def step(make):
        with tf.Graph().as_default(), v1.Session() as session:
            table = make()
            looked_up = v1.nn.embedding_lookup(table, BATCHES[0].ids, partition_strategy="div")
            step = LazyAdamOptimizer(RATE).minimize(tf.reduce_sum(tf.sin(looked_up)))
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(step)
            return session.run(tf.convert_to_tensor(table))

    whole = step(lambda: v1.get_variable("table", initializer=TABLE))
    np.testing.assert_array_equal(step(lambda: tables.partitioned(TABLE, 3)), whole)
    moved = np.flatnonzero(np.any(whole != TABLE, axis=1))
    assert moved.tolist() == sorted(set(BATCHES[0].ids))


def test_a_table_with_a_constraint_is_refused_as_by_stock():
    for optimizer in OPTIMIZERS.values():
        with tf.Graph().as_default():
            table = v1.get_variable(
                "table", initializer=TABLE, use_resource=True, constraint=tf.nn.relu
            )
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2]))
            with pytest.raises(RuntimeError, match="constraint"):
                optimizer(RATE).minimize(loss)


@pytest.mark.parametrize("use_resource", [True, False])
def test_an_id_outside_the_table_is_an_error(use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=TABLE, use_resource=use_resource)
        gradient = tf.IndexedSlices(tf.ones([1, TABLE.shape[1]]), tf.constant([len(TABLE)]))
        step = LazyAdamOptimizer(RATE).apply_gradients([(gradient, table)])
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"= {len(TABLE)} is not in"):
            session.run(step)
        np.testing.assert_array_equal(session.run(table), TABLE)
