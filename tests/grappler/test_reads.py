"""Lookups side by side read variables that change between the calls, and within one."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.grappler.executed import executed, lookups

ROWS = (5, 70, 2000)
"""Some small, some large enough to be read without a copy."""


@pytest.fixture
def tables() -> list[tf.Variable]:
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(size=(rows, 16)).astype(np.float32)) for rows in ROWS]


def joined(tables, ids):
    return tf.concat([tf.nn.safe_embedding_lookup_sparse(table, ids) for table in tables], 1)


IDS = tf.constant([[3, 1, 0], [0, 0, 0], [4, 0, 2]], tf.int64)


def test_a_function_sees_the_updates_of_its_tables(tables) -> None:
    ids = tf.sparse.from_dense(IDS)
    stock, fused = (tf.function(lambda ids: joined(tables, ids)) for _ in range(2))
    stock(ids)
    with fusion.fused():
        fused(ids)
    for turn in range(3):
        # A sparse update makes plain reads copy the table.
        tables[turn].scatter_sub(tf.IndexedSlices(tf.ones([1, 16]), tf.constant([3])))
        tables[2 - turn].assign_add(tf.ones([ROWS[2 - turn], 16]))
        with executed() as ran:
            output = fused(ids)
        np.testing.assert_array_equal(output, stock(ids))
        assert lookups(ran) == {"fused": 1, "stock": 0}


def test_the_order_of_reads_and_updates_stays(tables) -> None:
    def program(ids):
        before = joined(tables, ids)
        tables[1].assign_add(tf.ones([ROWS[1], 16]))
        middle = joined(tables, ids)
        tables[2].scatter_add(tf.IndexedSlices(tf.ones([1, 16]), tf.constant([3])))
        return before, middle, joined(tables, ids)

    start = [table.numpy() for table in tables]
    ids = tf.sparse.from_dense(IDS)
    expected = tf.function(program)(ids)
    for table, value in zip(tables, start, strict=True):
        table.assign(value)
    with fusion.fused():
        found = tf.function(program)(ids)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_fused_function_is_trained_as_before(tables) -> None:
    ids = tf.sparse.from_dense(IDS)

    def gradients(function):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(ids) ** 2)
        return [tf.convert_to_tensor(one).numpy() for one in tape.gradient(loss, tables)]

    expected = gradients(tf.function(lambda ids: joined(tables, ids)))
    with fusion.fused():
        function = tf.function(lambda ids: joined(tables, ids))
        function(ids)
        found = gradients(function)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("scope", [contextlib.nullcontext, fusion.fused], ids=["stock", "fused"])
def test_a_variable_without_a_value_is_named_as_stock_does(scope) -> None:
    v1 = tf.compat.v1
    with scope(), tf.Graph().as_default(), v1.Session() as session:
        made = [
            v1.get_variable(name, [9, 4], initializer=v1.ones_initializer(), use_resource=True)
            for name in ("here", "missing")
        ]
        ids = tf.SparseTensor(
            [[0, 0]], v1.placeholder_with_default(np.array([3], np.int64), [1]), [1, 1]
        )
        output = joined(made, ids)
        session.run(made[0].initializer)
        with pytest.raises(tf.errors.FailedPreconditionError, match="missing"):
            session.run(output)
        session.run(made[1].initializer)
        np.testing.assert_array_equal(session.run(output), np.ones([1, 8], np.float32))
