"""One function looks up a table that another trains row by row, in another thread."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import ops
from tests.grappler.executed import executed, lookups

ROWS, DIM, BATCH = 20_000, 16, 64


def place(table: tf.Variable) -> int:
    """Where a variable's rows are in memory."""
    (value,) = ops.read_embedding_tables(handles=[table.handle], T=table.dtype)
    return int(value._numpy().ctypes.data)


def bags(seed: int) -> tf.SparseTensor:
    rng = np.random.default_rng(seed)
    indices = [[row, k] for row in range(BATCH) for k in range(3)]
    return tf.SparseTensor(indices, rng.integers(0, ROWS, len(indices)), [BATCH, 3])


def predict_alone(table: tf.Variable) -> Any:
    return tf.function(lambda ids: tf.nn.safe_embedding_lookup_sparse(table, ids))


def predict_joined(table: tf.Variable) -> Any:
    other = tf.Variable(tf.ones([50, 4]))

    def joined(ids: tf.SparseTensor) -> tf.Tensor:
        of_other = tf.nn.safe_embedding_lookup_sparse(other, ids.with_values(ids.values % 50))
        return tf.concat([tf.nn.safe_embedding_lookup_sparse(table, ids), of_other], 1)

    return tf.function(joined)


@pytest.mark.parametrize("predict_with", [predict_alone, predict_joined])
def test_neither_copies_the_table(predict_with: Any) -> None:
    table = tf.Variable(tf.zeros([ROWS, DIM]))

    @tf.function
    def train(ids: tf.SparseTensor) -> None:
        with tf.GradientTape() as tape:
            vectors = tf.nn.safe_embedding_lookup_sparse(table, ids)
            loss = tf.reduce_sum((vectors - 1.0) ** 2)
        table.scatter_sub(tape.gradient(loss, table))

    predict = predict_with(table)
    with fusion.fused():
        train(bags(0))
        with executed() as ran:
            predict(bags(0))
    assert lookups(ran) == {"fused": 1, "stock": 0}
    assert not {"ReadVariableOp", "DisableCopyOnRead"}.intersection(ran)
    start, places = place(table), set[int]()

    def training() -> None:
        for step in range(300):
            train(bags(step))

    thread = threading.Thread(target=training)
    thread.start()
    while thread.is_alive():
        predict(bags(1))
        places.add(place(table))
    thread.join()
    assert places == {start}
    np.testing.assert_array_equal(
        predict(bags(2))[:, :DIM], tf.nn.safe_embedding_lookup_sparse(table, bags(2))
    )


def test_a_table_that_others_have_read_whole_is_copied_once() -> None:
    table = tf.Variable(tf.zeros([ROWS, DIM]))
    held = table.value()  # TensorFlow has to leave this as it is
    predict = predict_alone(table)
    with fusion.fused():
        predict(bags(0))
    first = place(table)
    for step in range(3):
        table.scatter_sub(tf.IndexedSlices(tf.ones([1, DIM]), [step]))
        predict(bags(step))
    assert place(table) == first
    assert not np.any(held)
