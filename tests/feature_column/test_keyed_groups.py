"""Layers of many columns, some without a bound: which ops they have, and what these give."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import feature_column as fc
from fusion.tables import EmbeddingVariableOption

ROWS, DIM, BATCH = 40, 4, 16
KEYED, ALL = ("a", "b", "d"), ("a", "b", "c", "d")


def layer_of(keyed, **named):
    """A layer of columns of which some have no bound, all rows of which begin alike."""
    columns = []
    for name in ALL:
        option = EmbeddingVariableOption(capacity=ROWS)
        ids = (
            fc.categorical_column_with_embedding(name, tf.int64, ev_option=option)
            if name in keyed
            else tf.feature_column.categorical_column_with_identity(name, ROWS)
        )
        initializer = tf.constant_initializer(0.125)
        columns.append(
            fc.embedding_column(ids, DIM, initializer=initializer, do_fusion="v2", **named)
        )
    return fc.DenseFeatures(columns)


def features(seed=0):
    rng = np.random.default_rng(seed)
    return {name: tf.constant(rng.integers(1, ROWS, [BATCH, 3]), tf.int64) for name in ALL}


def ops_of(layer, training):
    function = tf.function(lambda given: layer(given, training=training))
    graph = function.get_concrete_function(features()).graph
    return [op.type for op in graph.get_operations() if "Embedding" in op.type]


def trained(layer):
    """The losses of some steps, and what inference gives then."""
    optimizer = tf.keras.optimizers.SGD(0.25)
    layer(features())

    @tf.function
    def step(given):
        with tf.GradientTape() as tape:
            found = layer(given, training=True)
            loss = tf.reduce_mean(tf.square(found - tf.cos(tf.range(float(DIM * len(ALL))))))
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    losses = [float(step(features(k % 3))) for k in range(6)]
    return losses, layer(features(1), training=False).numpy()


@pytest.mark.parametrize("named", [{}, {"combiner": "sum", "max_norm": 0.1}])
def test_columns_are_trained_as_those_of_plain_tables(named):
    losses, found = trained(layer_of(KEYED, **named))
    expected_losses, expected = trained(layer_of((), **named))
    assert losses == expected_losses
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(found, expected)


def test_all_columns_share_ops():
    layer = layer_of(KEYED)
    layer(features())
    assert ops_of(layer, False) == ["ReadEmbeddingTables", "GroupedKeyedEmbeddingLookup"]
    assert ops_of(layer, True) == ["GroupedKeyedEmbeddingPreLookUp", "GroupedEmbeddingPostLookUp"]


def test_inference_inserts_nothing():
    layer = layer_of(ALL)
    for training in (False, True):
        assert not layer(features(), training=training).numpy().any()
        assert not tf.function(lambda t=training: layer(features(), training=t))().numpy().any()
