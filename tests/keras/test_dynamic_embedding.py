"""Keys without a bound: DynamicEmbedding in Keras 3, embedding variables in layers of tf_keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.keras.layers import DynamicEmbedding
from fusion.optimizers import keras3
from fusion.optimizers import tf_keras as ours_of_tf_keras
from fusion.tables import CounterFilter, EmbeddingVariable, EmbeddingVariableOption

ROWS, DIM = 30, 4
RNG = np.random.default_rng(1)
KEYS = RNG.integers(0, ROWS, (32, 3))
LABELS = RNG.standard_normal((32, 1)).astype(np.float32)
OPTION = EmbeddingVariableOption(capacity=4 * ROWS)
INITIAL = tf.constant_initializer(0.25)


def _layer(**arguments):
    return DynamicEmbedding(
        DIM,
        **{"embeddings_initializer": keras.initializers.Constant(0.25), "ev_option": OPTION}
        | arguments,
    )


def _fit(package, layer, optimizer, keys=KEYS, dtype="int64"):
    """A model of a layer of keys [B, 3], trained; its losses."""
    model = package.Sequential(
        [
            package.Input((3,), dtype=dtype),
            layer,
            package.layers.Flatten(),
            package.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(optimizer, "mse", jit_compile=False)
    history = model.fit(keys, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model, history.history["loss"]


def _has_row(variable, keys):
    return np.any(variable.embedding_lookup(keys).numpy() != 0, -1).tolist()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.05),
        lambda: keras3.Adagrad(0.1),
        lambda: keras3.LazyAdam(0.1),
        lambda: keras3.LazyMomentum(0.05, 0.5),
        lambda: keras3.LazyFtrl(0.1),
    ],
)
def test_it_trains_as_an_embedding(optimizer):
    plain = fusion.keras.layers.Embedding(
        ROWS, DIM, embeddings_initializer=keras.initializers.Constant(0.25)
    )
    model, losses = _fit(keras, _layer(), optimizer())
    other, expected = _fit(keras, plain, optimizer())
    assert losses == expected
    assert len(set(losses)) == 3
    np.testing.assert_array_equal(model.predict(KEYS, verbose=0), other.predict(KEYS, verbose=0))


def test_strings_train_as_numbers():
    words = tf.strings.as_string(KEYS)
    _, losses = _fit(keras, _layer(key_dtype="string"), keras3.Adagrad(0.1), words, "string")
    _, expected = _fit(keras, _layer(), keras3.Adagrad(0.1))
    assert losses == expected


def test_only_training_gives_rows_to_keys():
    layer = _layer()
    model, _ = _fit(keras, layer, keras3.LazyAdam(0.1))
    model.evaluate(KEYS + ROWS, LABELS, verbose=0)
    model.predict(KEYS + 2 * ROWS, verbose=0)
    layer(KEYS + 3 * ROWS)
    variable = layer.embedding_variable
    assert all(_has_row(variable, np.unique(KEYS)))
    assert not any(_has_row(variable, np.arange(ROWS, 4 * ROWS)))


def test_a_frozen_layer_gives_no_rows():
    layer = _layer(trainable=False)
    _fit(keras, layer, "sgd")
    assert not any(_has_row(layer.embedding_variable, np.arange(ROWS)))
    assert not layer.trainable_weights


def test_admission():
    layer = _layer(
        ev_option=EmbeddingVariableOption(filter_option=CounterFilter(2), capacity=4 * ROWS)
    )
    keys = np.array([[1, 2, 3]] * 32)
    keys[0, 0] = 7  # once in each epoch of three
    _fit(keras, layer, "sgd", keys)
    assert _has_row(layer.embedding_variable, [1, 2, 3, 7, 8]) == [True] * 4 + [False]


def test_its_weight_is_the_table():
    layer = _layer()
    _fit(keras, layer, "sgd")
    (weight,) = layer.weights
    assert layer.trainable_weights == [weight]
    assert weight.shape == (4 * ROWS, DIM)
    assert weight.value is layer.embedding_variable.table


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "float64"])
def test_dtypes_and_shapes(policy):
    layer = _layer(dtype=policy)
    assert layer(KEYS).shape == (32, 3, DIM)
    assert layer(KEYS).dtype == layer.compute_dtype
    assert layer.embedding_variable.dtype == layer.variable_dtype
    ragged = tf.ragged.constant([[1], [], [2, 3]], dtype=tf.int64)
    assert layer(ragged).shape == (3, None, DIM)


def test_a_layer_of_a_configuration():
    layer = _layer(key_dtype="int32", name="tables")
    other = DynamicEmbedding.from_config(layer.get_config())
    assert other.get_config() == layer.get_config()
    assert other.ev_option == OPTION
    assert other.name == "tables"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"output_dim": 0}, ValueError, "output_dim must be at least 1, got 0"),
        ({"output_dim": 2.5}, TypeError, "output_dim must be .*, got 2.5"),
        ({"output_dim": 2, "ev_option": 5}, TypeError, "ev_option must be an .*, got 5"),
        ({"output_dim": 2, "key_dtype": "float32"}, TypeError, "key_dtype must be one of"),
        ({"output_dim": 2, "dtype": "float16"}, TypeError, "dtype must be one of"),
    ],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        DynamicEmbedding(**arguments).build()


def test_a_layer_that_is_not_built_has_no_table():
    layer = _layer()
    with pytest.raises(ValueError, match="has no table yet"):
        _ = layer.embedding_variable
    layer.build()
    assert layer.embedding_variable.capacity == 4 * ROWS


def test_keys_of_another_dtype():
    with pytest.raises(TypeError, match="must be int64, got float32"):
        _layer()(np.ones([2], np.float32))


def _lookup(variable, keys, version):
    if version is None:
        return tf.reduce_mean(variable.embedding_lookup(keys), 1)
    ragged = tf.RaggedTensor.from_tensor(keys)
    return fusion.fused_safe_embedding_lookup_sparse(variable, ragged, fusion_version=version)


@keras.saving.register_keras_serializable("tests")
class InKeras3(keras.layers.Layer):
    """A layer that looks up by itself."""

    def __init__(self, version):
        super().__init__()
        self.version = version
        self.table = _layer()

    def build(self, input_shape):
        self.table.build()

    def call(self, keys):
        return _lookup(self.table.embedding_variable, keys, self.version)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], DIM)


class InTfKeras(tf_keras.layers.Layer):
    """A layer that has an embedding variable."""

    def __init__(self, version):
        super().__init__()
        self.version = version
        self.table = EmbeddingVariable("table", DIM, initializer=INITIAL, capacity=4 * ROWS)

    def call(self, keys):
        return _lookup(self.table, keys, self.version)


HELD: dict[str, Any] = {
    "keras3": (keras, InKeras3, keras3),
    "tf_keras": (tf_keras, InTfKeras, ours_of_tf_keras),
}


@pytest.mark.parametrize("family", HELD)
@pytest.mark.parametrize("version", [None, "v1", "v2"])
def test_layers_with_lookups_of_their_own(family, version):
    package, layer_class, ours = HELD[family]
    layer = layer_class(version)
    model, _ = _fit(package, layer, ours.LazyAdam(0.1))
    (weight,) = layer.trainable_weights
    assert layer.weights == [weight]
    variable = EmbeddingVariable.of(weight)
    assert variable is not None
    model.predict(KEYS + ROWS, verbose=0)
    assert all(_has_row(variable, np.unique(KEYS)))
    assert np.all(variable.embedding_lookup(np.unique(KEYS)).numpy() != 0.25)
    assert not any(_has_row(variable, np.arange(ROWS, 2 * ROWS)))


@pytest.mark.parametrize("version", [None, "v1", "v2"])
def test_both_kerases_train_alike(version):
    one, other = (
        _fit(package, layer_class(version), ours.LazyMomentum(0.05, 0.5))[1]
        for package, layer_class, ours in HELD.values()
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_modules_have_the_table_alone():
    module = tf.Module()
    module.table = variable = EmbeddingVariable("table", DIM, capacity=ROWS)
    assert [v is variable.table for v in module.variables] == [True]
    assert [v is variable.table for v in variable.trainable_variables] == [True]
