"""Columns whose ids have no bound, in the layers of both Kerases."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion.lookup import VERSIONS
from tests.feature_column.keyed_models import (
    BATCH,
    DIM,
    HOSTS,
    KINDS,
    OPTIMIZERS,
    ROWS,
    STEPS,
    embedding,
    known,
    table_of,
    train,
)

EACH_HOST = pytest.mark.parametrize("host", HOSTS)
EACH_FUSION = pytest.mark.parametrize("do_fusion", [None, *VERSIONS])


def _batches(kind, first=0):
    return [KINDS[kind].features(seed, first) for seed in range(STEPS)]


@EACH_HOST
@EACH_FUSION
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_they_train_as_plain_tables(host, do_fusion, optimizer):
    host, kind, batches = HOSTS[host], KINDS["dense"], _batches("dense")
    ours, losses = train(
        host, embedding(kind.keyed(), do_fusion), batches, host.optimizer(optimizer)
    )
    plain, expected = train(
        host, embedding(kind.plain(), do_fusion), batches, host.optimizer(optimizer)
    )
    assert losses == expected
    assert len(set(losses)) == STEPS
    np.testing.assert_array_equal(ours(batches[0]), plain(batches[0]))


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        *((host, kind) for host in HOSTS for kind in ("sparse", "weighted", "strings")),
        ("keras3", "ragged"),  # tf_keras's layer takes no RaggedTensors, for any column
    ],
)
@EACH_FUSION
def test_all_kinds_of_features(host, do_fusion, kind):
    host, batches = HOSTS[host], _batches(kind)
    columns = [embedding(make(), do_fusion) for make in (KINDS[kind].keyed, KINDS[kind].plain)]
    (_, losses), (_, expected) = (
        train(host, column, batches, host.optimizer("adagrad")) for column in columns
    )
    assert losses == expected
    assert len(set(losses)) == STEPS


@EACH_FUSION
def test_stock_layers_take_no_ragged_features_of_any_column(do_fusion):
    for make in (KINDS["ragged"].keyed, KINDS["ragged"].plain):
        column = embedding(make(), do_fusion)
        with pytest.raises(ValueError, match="RaggedTensor"):
            HOSTS["tf_keras"].dense_features([column])(KINDS["ragged"].features(0, 0))
        with tf.Graph().as_default():
            features = KINDS["ragged"].features(0, 0)
            with pytest.raises(TypeError, match="RaggedTensor"):
                tf.compat.v1.feature_column.input_layer(features, [column])


@EACH_HOST
@EACH_FUSION
def test_eagerly_they_train_alike(host, do_fusion):
    host, batches = HOSTS[host], _batches("dense")
    eager, compiled = (
        train(
            host,
            embedding(KINDS["dense"].keyed(), do_fusion),
            batches,
            host.optimizer("adagrad"),
            compiled=compiled,
        )[1]
        for compiled in (False, True)
    )
    assert eager == compiled


@EACH_HOST
@EACH_FUSION
@pytest.mark.parametrize("option", [{"max_norm": 0.5}, {"use_safe_embedding_lookup": False}])
def test_options_of_columns(host, do_fusion, option):
    host, batches = HOSTS[host], _batches("dense")
    columns = [
        embedding(make(), do_fusion, combiner="sum", **option)
        for make in (KINDS["dense"].keyed, KINDS["dense"].plain)
    ]
    (_, losses), (_, expected) = (
        train(host, column, batches, host.optimizer("sgd")) for column in columns
    )
    assert losses == expected


@EACH_HOST
@EACH_FUSION
def test_only_training_gives_rows_to_keys(host, do_fusion):
    host, kind = HOSTS[host], KINDS["dense"]
    layer = host.dense_features([embedding(kind.keyed(), do_fusion)])
    model = host.keras.Sequential([layer, host.keras.layers.Dense(1)])
    model.compile(host.optimizer("adam"), "mse", jit_compile=False)
    seen = np.arange(12).reshape([4, 3])
    labels = np.ones([4, 1], np.float32)
    model.fit({"a": seen}, labels, verbose=0)
    model.evaluate({"a": seen + 20}, labels, verbose=0)
    model.predict({"a": seen + 40}, verbose=0)
    variable = table_of(layer)
    assert all(known(variable, range(12)))
    assert not any(known(variable, range(20, 52)))
    assert model({"a": seen + 60}).shape == (4, 1)
    assert not any(known(variable, range(60, 72)))


@EACH_HOST
@EACH_FUSION
@pytest.mark.parametrize("is_eager", [False, True])
def test_a_frozen_layer_gives_no_rows(host, do_fusion, is_eager):
    host, labels = HOSTS[host], np.ones([4, 1])
    layer = host.dense_features([embedding(KINDS["dense"].keyed(), do_fusion)])
    model = host.keras.Sequential([layer, host.keras.layers.Dense(1)])
    options = {"run_eagerly": is_eager, "jit_compile": False}
    model.compile("sgd", "mse", **options)
    model.train_on_batch({"a": np.arange(12).reshape([4, 3])}, labels)
    variable = table_of(layer)
    layer.trainable = False
    model.compile("sgd", "mse", **options)
    model.train_on_batch({"a": np.arange(12, 24).reshape([4, 3])}, labels)
    assert all(known(variable, range(12)))
    assert not any(known(variable, range(12, 24)))


@EACH_HOST
def test_the_table_is_the_only_weight(host):
    layer, _ = train(
        HOSTS[host],
        embedding(KINDS["dense"].keyed(), None),
        _batches("dense"),
        HOSTS[host].optimizer("sgd"),
    )
    (weight,) = layer.weights
    assert tuple(weight.shape) == (3 * ROWS, DIM)
    (trained,) = layer.trainable_weights
    assert trained is weight
    assert not layer.non_trainable_weights
    assert [w.shape for w in layer.get_weights()] == [(ROWS, DIM)]  # those of keys


@EACH_HOST
def test_a_key_without_room_is_an_error(host):
    host = HOSTS[host]
    batches = [KINDS["dense"].features(seed, 100 * seed) for seed in range(STEPS)]
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no room for"):
        train(host, embedding(KINDS["dense"].keyed(), None), batches, host.optimizer("sgd"))


@EACH_FUSION
def test_do_fusion_of_the_layer(do_fusion):
    host, batches = HOSTS["keras3"], _batches("dense")
    column = embedding(KINDS["dense"].keyed(), None)
    layer = host.dense_features([column], do_fusion=do_fusion)
    layer(batches[0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(batches[0], training=True))
    gradient = tape.gradient(total, layer.trainable_variables[0].value)
    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_array_equal(layer(batches[0], training=False), np.full([BATCH, DIM], 0.125))


@pytest.mark.parametrize("training", [None, True, False])
def test_beside_other_columns(training):
    host, batches = HOSTS["keras3"], _batches("dense")
    columns = [
        embedding(KINDS["dense"].keyed(), "v2"),
        embedding(tf.feature_column.categorical_column_with_hash_bucket("b", 10, tf.int64), "v2"),
        tf.feature_column.numeric_column("n"),
    ]
    layer = host.dense_features(columns)
    features = batches[0] | {"b": batches[1]["a"], "n": tf.ones([BATCH, 1])}
    layer(features)
    with tf.GradientTape() as tape:
        result = layer(features, training=training)
    gradients = tape.gradient(result, [v.value for v in layer.trainable_variables])
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
    assert result.shape == (BATCH, 2 * DIM + 1)
    np.testing.assert_array_equal(result, np.resize([0.125] * 2 * DIM + [1.0], result.shape))


def test_a_layer_of_a_configuration():
    host = HOSTS["keras3"]
    layer = host.dense_features([embedding(KINDS["weighted"].keyed(), "v2")])
    other = type(layer).from_config(layer.get_config())
    assert other.get_config() == layer.get_config()
    features = KINDS["weighted"].features(0, 0)
    np.testing.assert_array_equal(other(features), layer(features))


@EACH_HOST
def test_keys_of_another_dtype_are_refused(host):
    layer = HOSTS[host].dense_features([embedding(KINDS["dense"].keyed(), None)])
    with pytest.raises(ValueError, match="feature 'a' must be of int64, got string"):
        layer(KINDS["strings"].features(0, 0))
