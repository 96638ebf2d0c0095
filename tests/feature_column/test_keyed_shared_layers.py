"""Columns whose ids have no bound and that share a table, in our layer for Keras 3."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion import feature_column as fc
from fusion import ops
from fusion.optimizers import keras3 as ours
from fusion.tables import CounterFilter, EmbeddingVariableOption
from fusion.tables.registry import embedding_variable_of
from tests.feature_column.keyed_models import BATCH, DIM, ROWS

FUSION = pytest.mark.parametrize("do_fusion", [None, "v1", "v2"])
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.25),
    "adagrad": lambda: ours.Adagrad(0.25),
    "adam": lambda: ours.LazyAdam(0.1),
}
NAMES, STEPS = ("a", "b", "c"), 4


def keyed(name, dtype=tf.int64, count=None, **option):
    made = EmbeddingVariableOption(**({"capacity": 2 * ROWS} | option))
    return fc.categorical_column_with_embedding(name, dtype, count, made)


def plain(name, dtype=tf.int64):
    if dtype == tf.string:
        words = [str(k) for k in range(ROWS)]
        return tf.feature_column.categorical_column_with_vocabulary_list(name, words)
    return tf.feature_column.categorical_column_with_identity(name, ROWS)


def columns_of(make, do_fusion, **named):
    """Columns whose table has equal rows, which can only be made in a graph."""
    with tf.Graph().as_default():
        return fc.shared_embeddings(
            [make(name) for name in NAMES],
            DIM,
            initializer=tf.constant_initializer(0.125),
            do_fusion=do_fusion,
            **named,
        )


def layer_of(make, do_fusion, **named):
    return fc.DenseFeatures(columns_of(make, do_fusion, **named))


def ids_of(number, shape=(BATCH, 3)):
    return np.random.default_rng(number).integers(0, ROWS, shape)


def dense(step):
    return {
        name: tf.constant(ids_of(len(NAMES) * step + k), tf.int64) for k, name in enumerate(NAMES)
    }


def ragged(step):
    features = {}
    for k, name in enumerate(NAMES):
        rng = np.random.default_rng(len(NAMES) * step + k)
        lengths = rng.integers(0, 4, BATCH)
        ids = tf.constant(rng.integers(0, ROWS, lengths.sum()), tf.int64)
        features[name] = tf.RaggedTensor.from_row_lengths(ids, lengths)
    return features


def weighted(step):
    features = {name: ids.to_sparse() for name, ids in ragged(step).items()}
    for number, name in enumerate(NAMES):
        ids = features[name]
        weights = np.random.default_rng(number).uniform(0.5, 2, ids.values.shape[0])
        weights = tf.constant(weights, tf.float32)
        features[f"{name}_weights"] = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
    return features


def with_weights(make):
    return lambda name: tf.feature_column.weighted_categorical_column(make(name), f"{name}_weights")


def of_strings(make):
    return lambda name: make(name, tf.string)


#: Features of a step, and what makes a categorical column of one that makes such of ids.
KINDS = {
    "dense": (dense, lambda make: make),
    "ragged": (ragged, lambda make: make),
    "weighted": (weighted, with_weights),
    "strings": (
        lambda step: {k: tf.strings.as_string(v) for k, v in dense(step).items()},
        of_strings,
    ),
}


def train(layer, batches, optimizer="sgd", training=None, compiled=True):
    """The losses of batches, and what inference gives then."""
    layer(batches[0])
    made = OPTIMIZERS[optimizer]()
    made.build(layer.trainable_variables)
    signs = tf.cos(tf.range(float(DIM * len(NAMES))))

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(batch, training=training) - signs))
        weights = layer.trainable_variables
        made.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    run = tf.function(step, reduce_retracing=True) if compiled else step
    return [float(run(batch)) for batch in batches], layer(batches[0], training=False).numpy()


def variable_of(layer):
    """The one embedding variable of a layer."""
    (table,) = layer.weights
    return embedding_variable_of(table.value)


def counts_of(layer):
    """How often each key was seen, and which have rows."""
    found = ops.embedding_key_entries(index=variable_of(layer).index.handle)
    counts = dict(zip(found.keys.numpy().tolist(), found.counts.numpy().tolist(), strict=True))
    return counts, {*found.keys.numpy()[found.rows.numpy() >= 0].tolist()}


def seen_in(batches):
    """How often each key is in all columns of batches."""
    ids = np.concatenate([v.numpy().ravel() for batch in batches for v in batch.values()])
    return dict(zip(*(x.tolist() for x in np.unique(ids, return_counts=True)), strict=True))


@pytest.mark.parametrize("training", [None, True])
@pytest.mark.parametrize("kind", KINDS)
@FUSION
def test_all_kinds_of_features(do_fusion, kind, training):
    features, wrap = KINDS[kind]
    batches = [features(step) for step in range(STEPS)]
    (losses, found), (expected_losses, expected) = (
        train(layer_of(wrap(make), do_fusion), batches, "adagrad", training)
        for make in (keyed, plain)
    )
    assert losses == expected_losses
    assert len({*losses}) == STEPS
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("named", [{}, {"max_norm": 0.2, "combiner": "sum"}], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@FUSION
def test_training_is_that_of_a_plain_table(do_fusion, optimizer, named):
    batches = [dense(step) for step in range(STEPS)]
    own = train(layer_of(keyed, do_fusion, **named), batches, optimizer, True)
    expected = train(layer_of(plain, do_fusion, **named), batches, optimizer, True)
    assert own[0] == expected[0]
    assert len({*own[0]}) == STEPS
    np.testing.assert_array_equal(own[1], expected[1])


@FUSION
def test_eagerly_and_in_partitions_it_is_the_same(do_fusion):
    batches = [dense(step) for step in range(STEPS)]
    losses, found = train(layer_of(keyed, do_fusion), batches, "adam", True)
    for make, compiled in ((keyed, False), (lambda name: keyed(name, count=2), True)):
        own = train(layer_of(make, do_fusion), batches, "adam", True, compiled)
        assert own[0] == losses
        np.testing.assert_array_equal(own[1], found)


@FUSION
def test_tf_keras_in_tensorflow_2(do_fusion):
    """Its layer knows nothing of tables that are shared, of ordinary columns neither."""

    def losses(make):
        layer, result = tf_keras.layers.DenseFeatures(columns_of(make, do_fusion)), []
        for step in range(STEPS):
            with tf.GradientTape() as tape:
                signs = tf.cos(tf.range(float(DIM * len(NAMES))))
                loss = tf.reduce_mean(tf.square(layer(dense(step)) - signs))
            (table,) = tape.watched_variables()
            optimizer = tf_keras.optimizers.SGD(0.25)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            result.append(float(loss))
        assert not layer.weights
        return result

    assert losses(keyed) == losses(plain)
    assert len({*losses(keyed)}) == STEPS


def test_all_columns_share_ops():
    layer = layer_of(keyed, "v2")
    layer(dense(0))

    def types(training):
        function = tf.function(lambda given: layer(given, training=training))
        operations = function.get_concrete_function(dense(0)).graph.get_operations()
        return [op.type for op in operations if "Embedding" in op.type]

    assert types(False) == ["GroupedKeyedEmbeddingLookup"]
    assert types(True) == ["GroupedKeyedEmbeddingPreLookUp", "GroupedEmbeddingPostLookUp"]


@pytest.mark.parametrize("admission", [1, 5])
@pytest.mark.parametrize("training", [None, True])
@FUSION
def test_a_key_is_seen_by_all_columns(do_fusion, training, admission):
    """In one op, too: it gets its row by what all columns have seen together."""

    def make(name):
        return keyed(name, filter_option=CounterFilter(admission))

    layer, seen = layer_of(make, do_fusion), {}
    for step in range(3):
        train(layer, [dense(step)], training=training)
        seen = seen_in([dense(k) for k in range(step + 1)])
        counts, with_row = counts_of(layer)
        assert with_row == {key for key, count in seen.items() if count >= admission}
        if admission > 1:  # else it is enough to have been there
            assert counts == seen
    assert with_row
    assert (with_row == {*seen}) == (admission == 1)


def test_many_new_keys_of_several_threads():
    """The same ones in all columns: each has one row, and the sum of gradients."""
    count = 20_000
    ids = np.random.default_rng(0).integers(0, count, [9000, 2])
    batch = {name: tf.constant(np.roll(ids, k, 0), tf.int64) for k, name in enumerate(NAMES)}
    layer = layer_of(lambda name: keyed(name, capacity=count), "v2", combiner="sum")
    layer(batch)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layer(batch, training=True))
        return tape.gradient(total, layer.trainable_variables[0].value)

    gradient = tf.convert_to_tensor(step()).numpy()
    keys, times = np.unique(ids, return_counts=True)
    counts, with_row = counts_of(layer)
    assert {*counts} == with_row == {*keys.tolist()}
    found = ops.embedding_key_entries(index=variable_of(layer).index.handle)
    rows = dict(zip(found.keys.numpy().tolist(), found.rows.numpy().tolist(), strict=True))
    assert len({*rows.values()}) == len(keys)
    of_keys = gradient[[rows[key] for key in keys.tolist()]]
    np.testing.assert_array_equal(of_keys, np.repeat(3.0 * times[:, None], DIM, 1))
    assert gradient.sum() == of_keys.sum()


@FUSION
def test_inference_and_a_frozen_layer_give_no_rows(do_fusion):
    layer = layer_of(keyed, do_fusion)
    for training in (None, False):
        assert not layer(dense(0), training=training).numpy().any()
    layer.trainable = False
    for training in (None, True):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layer(dense(0), training=training))
        assert tape.gradient(total, layer.weights[0].value) is None or not total
    assert counts_of(layer)[0] == {}
    assert not layer.trainable_weights


@FUSION
def test_do_fusion_of_the_layer(do_fusion):
    layer = fc.DenseFeatures(columns_of(keyed, None), do_fusion=do_fusion)
    layer(dense(0))
    function = tf.function(lambda given: layer(given, training=False))
    operations = function.get_concrete_function(dense(0)).graph.get_operations()
    grouped = "GroupedKeyedEmbeddingLookup" in {op.type for op in operations}
    assert grouped == (do_fusion is not None)


def test_beside_columns_with_tables_of_their_own():
    shared, alone = columns_of(keyed, "v2"), fc.embedding_column(keyed("a"), 2, do_fusion="v2")
    layer = fc.DenseFeatures([*shared, alone, fc.embedding_column(plain("b"), 2, do_fusion="v2")])
    layer(dense(0))
    assert len(layer.weights) == 3
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(dense(0), training=True))
    weights = [weight.value for weight in layer.weights]
    assert all(isinstance(g, tf.IndexedSlices) for g in tape.gradient(total, weights))


def test_two_tables_of_one_name():
    columns = columns_of(keyed, None)[:1] + columns_of(keyed, None)[1:]
    with pytest.raises(ValueError, match=r"two tables .* have the name"):
        fc.DenseFeatures(columns)(dense(0))
