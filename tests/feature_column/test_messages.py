"""Errors in the values of a feature name its column, in whatever ops the layer has."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.feature_column import DenseFeatures

fc = tf.feature_column
KEYS = ("B", "C17", "D")


def layer(do_fusion: str | None = "v2") -> DenseFeatures:
    columns = [fc.embedding_column(fc.categorical_column_with_identity(k, 10), 4) for k in KEYS]
    return DenseFeatures(columns, do_fusion=do_fusion, name="features")


def features(**given: object) -> dict[str, object]:
    return {key: tf.constant([[1], [2]], tf.int64) for key in KEYS} | given


@pytest.mark.parametrize("training", [False, True, None])
@pytest.mark.parametrize("version", ["v1", "v2", None])
def test_an_id_outside_its_table(version, training):
    one = layer(version)
    run = tf.function(lambda inputs: one(inputs, training=training))
    run(features())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 50") as caught:
        run(features(C17=tf.constant([[1], [50]], tf.int64)))
    assert "C17_embedding" in caught.value.message  # as the column, or in the name of the node


@pytest.mark.parametrize("training", [False, True])
def test_a_row_outside_the_batch(training):
    one = layer()
    run = tf.function(lambda inputs: one(inputs, training=training))
    wrong = tf.SparseTensor([[0, 0], [5, 0]], np.array([1, 4]), [2, 1])
    text = r"column 1 \(C17_embedding of table features/C17_embedding/embedding_weights\): row 5"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{text} of entry 1 .*id is 4"):
        run(features(C17=wrong))


@pytest.mark.parametrize("trained", [False, True])
def test_under_the_pass(trained):
    one = layer(None)
    one(features())

    @tf.function
    def run(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(one(inputs))
        return tape.gradient(loss, one.trainable_variables) if trained else loss

    wrong = tf.SparseTensor([[0, 0], [5, 0]], np.array([1, 4]), [2, 1])
    sparse = {key: tf.SparseTensor([[0, 0]], np.array([1]), [2, 1]) for key in KEYS}
    with fusion.fused():
        run(sparse)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"column 1 \(.*C17_embedding.*5"):
            run(sparse | {"C17": wrong})
