"""Training steps in a tf.function: the same bits, from fused ops, forward and backward."""

from __future__ import annotations

import pytest
import tensorflow as tf

import fusion
from tests.grappler.training_steps import (
    GRADIENT,
    OPTIMIZERS,
    STOCK,
    TRAINED,
    Column,
    train,
    train_both,
)

COMBINERS = ("mean", "sum", "sqrtn")
MIXED = [Column(combiner) for combiner in COMBINERS] * 2


def assert_trained(run, ops=1, gradients=None):
    """Only fused ops ran, so many of each."""
    assert [run.count(op) for op in TRAINED] == [ops] * 2
    assert run.count(GRADIENT) == (ops if gradients is None else gradients)
    assert run.count(*STOCK) == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    stock, fused = train_both(MIXED, optimizer)
    fused.assert_same(stock)
    assert_trained(fused)
    assert stock.count(*TRAINED, GRADIENT) == 0


@pytest.mark.parametrize(
    "column",
    [
        Column(options={"default_id": 3}),
        Column("sum", options={"max_norm": 1.5}),
        Column(weighted=True),
        Column("sum", weighted=True),
        Column("sqrtn", weighted=True),
        Column("sqrtn", weighted=True, options={"default_id": 0, "max_norm": 1.0}),
        Column(plain=True),
        Column("sqrtn", weighted=True, plain=True),
    ],
    ids=str,
)
def test_kinds_of_columns(column):
    stock, fused = train_both([column, Column(), column])
    fused.assert_same(stock)
    assert_trained(fused)


def test_many_columns():
    # The gradient of a concat of more than 16 inputs is another one.
    stock, fused = train_both([Column(COMBINERS[n % 3]) for n in range(26)])
    fused.assert_same(stock)
    assert_trained(fused)


@pytest.mark.parametrize("whole", [False, True], ids=["rows", "tables"])
@pytest.mark.parametrize("count", [2, 16])
def test_batches_of_a_size_that_is_known(count, whole):
    """TensorFlow makes constants of all shapes; by them gradients of tables were told apart."""
    columns = [Column(COMBINERS[n % 3]) for n in range(count)]
    stock, fused = train_both(columns, static=True, whole=whole)
    fused.assert_same(stock)
    assert_trained(fused)


def test_two_runs_are_the_same():
    with fusion.fused():
        train(MIXED, "adam").assert_same(train(MIXED, "adam"))


def test_columns_of_one_table():
    stock, fused = train_both([Column(table=0), Column("sum", table=0), Column(table=0)])
    fused.assert_same(stock)
    assert_trained(fused)


def test_a_column_between_others():
    def join(dense, columns):
        return tf.concat([columns[0], dense, columns[1], dense * 2, *columns[2:]], 1)

    stock, fused = train_both(MIXED, join=join)
    fused.assert_same(stock)
    assert_trained(fused)


def test_columns_that_are_not_side_by_side():
    def join(dense, columns):
        return tf.add_n(columns) * dense[:, :1]

    stock, fused = train_both(MIXED[:3], join=join)
    fused.assert_same(stock)
    assert_trained(fused, 3)


def test_a_column_that_others_read_too():
    def join(dense, columns):
        return tf.concat([dense, *columns], 1) * tf.reduce_sum(columns[0], 1, keepdims=True)

    stock, fused = train_both(MIXED[:4], join=join)
    fused.assert_same(stock)
    # What takes its gradient out of that of the concat measures them all.
    assert_trained(fused, 4)


def test_a_concat_within_a_concat():
    def join(dense, columns):
        return tf.concat([tf.concat(columns[:2], 1), dense, tf.concat(columns[2:], 1)], 1)

    stock, fused = train_both(MIXED[:4], join=join)
    fused.assert_same(stock)
    assert_trained(fused, 2)


def test_a_concat_of_the_rows_of_columns():
    def join(dense, columns):
        return tf.reshape(tf.concat(columns, 0), [-1, 2 * columns[0].shape[1]])[
            : tf.shape(dense)[0]
        ]

    stock, fused = train_both(MIXED[:2], join=join)
    fused.assert_same(stock)
    assert_trained(fused, 2)


def test_the_gradient_of_a_trained_part_of_the_dense_features():
    scale = tf.Variable(2.0, trainable=False)

    def join(dense, columns):
        # The gradient of what is between the columns is wanted, too.
        return tf.concat([columns[0], columns[1], columns[0] * scale, columns[2]], 1)

    stock, fused = train_both(MIXED[:3], join=join)
    fused.assert_same(stock)
    assert fused.count(*STOCK) == 0


def test_a_table_that_is_not_trained():
    stock, fused = train_both(MIXED[:4], frozen=frozenset({1}))
    fused.assert_same(stock)
    assert fused.count(*STOCK) == 0
    assert fused.count(GRADIENT) >= 1
