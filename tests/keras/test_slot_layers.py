"""Layers of slots in both Kerases: the numbers of stock TensorFlow and of HugeCTR's plugin."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.tables import CounterFilter, EmbeddingVariableOption
from tests.keras.models import ops_of
from tests.keras.slots import (
    DIM,
    FAMILIES,
    KEYS,
    NNZ,
    ROWS,
    SLOTS,
    TABLE,
    layer_of,
    ragged,
    stock_embeddings,
    stock_sums,
    table_of,
    trained,
)

BOTH = ("SlotEmbedding", "AllToAllDenseEmbedding")
OPTION = EmbeddingVariableOption(capacity=50)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def assert_trains_as(stock, layer, keys):
    """Compares results and gradients of a layer, and its result where nothing is trained."""
    table = tf.Variable(TABLE)
    expected, stock_gradient = trained(lambda given: stock(table, given), table, keys)
    for run in (trained, tf.function(trained)):
        result, gradient = run(layer, table_of(layer), keys)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-6)
        assert isinstance(gradient, tf.IndexedSlices)
        assert sorted(gradient.indices.numpy()) == sorted({*KEYS.flatten()} - {-1})
        ours, theirs = (tf.convert_to_tensor(one) for one in (gradient, stock_gradient))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tf.function(layer)(keys), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_slots_are_those_of_stock(family, combiner, dtype):
    layer = layer_of(family, "SlotEmbedding", combiner=combiner)
    keys = tf.constant(KEYS, dtype)
    assert_trains_as(lambda table, given: stock_sums(table, given, combiner), layer, keys)
    assert not np.any(layer(keys)[0, :2])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_embeddings_of_all_keys_are_those_of_stock(family, dtype):
    layer, keys = layer_of(family, "AllToAllDenseEmbedding"), tf.constant(KEYS, dtype)
    assert_trains_as(stock_embeddings, layer, keys)
    assert not np.any(layer(keys)[0, :2])
    dynamic = layer_of(family, "AllToAllDenseEmbedding", dynamic_input=True)
    for given in (keys, tf.unique(tf.reshape(keys, [-1]))[0], keys[0, 0, 0], keys[:0, 0]):
        np.testing.assert_array_equal(dynamic(given), stock_embeddings(TABLE, given))


def test_the_numbers_of_hugectrs_notebook(family):
    """Before and after a step of Adam, as it prints them."""
    package, ours = FAMILIES[family]
    table = np.arange(1, 33, dtype=np.float32).reshape(8, 4)
    keys = np.full((4, 3, 2), -1)
    keys[:, 0, 0], keys[:, 1, 0], keys[[0, 2, 3], 2, 0], keys[0, 2, 1] = 0, 1, [2, 6, 2], 6
    first, second = np.zeros((4, 3, 4)), np.zeros((4, 3, 4))
    first[:, :2] = table[:2]
    first[[0, 2, 3], 2] = [[34, 36, 38, 40], [25, 26, 27, 28], [9, 10, 11, 12]]
    second[:, 0] = [0.90024906, 1.9002491, 2.900249, 3.900249]
    second[:, 1] = [4.900249, 5.900249, 6.900249, 7.900249]
    second[0, 2] = [33.800995, 35.800995, 37.800995, 39.800995]
    second[2, 2] = [24.900497, 25.900497, 26.900497, 27.900497]
    second[3, 2] = [8.900497, 9.900497, 10.900497, 11.900497]

    initializer = package.initializers.Constant(table)
    layer = ours.SlotEmbedding(8, 4, slot_num=3, embeddings_initializer=initializer)
    optimizer = package.optimizers.Adam(0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-3)
    with tf.GradientTape() as tape:
        result = layer(keys)
    np.testing.assert_array_equal(result, first)
    gradients = tape.gradient(result, layer.trainable_weights)
    optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))
    np.testing.assert_allclose(layer(keys), second, rtol=1e-6)


@pytest.mark.parametrize("name", BOTH)
def test_fused_ops_run(family, name):
    layer, keys = layer_of(family, name), tf.constant(KEYS)
    table = table_of(layer)
    training = ops_of(lambda given: trained(layer, table, given), keys)
    fused = {f"GroupedEmbedding{part}" for part in ("PreLookUp", "PostLookUp", "PostLookUpGrad")}
    assert {op for op in training if op.startswith("Grouped")} == fused
    assert training.count("ResourceGather") == 1
    inference = ops_of(layer, keys)
    assert {op for op in inference if op.startswith("Grouped")} == {"GroupedEmbeddingLookup"}
    for ops in (training, inference):
        assert not any("Sparse" in op or "Unique" in op or "Segment" in op for op in ops)


@pytest.mark.parametrize("name", BOTH)
def test_ragged_keys(family, name):
    layer = layer_of(family, name, slot_num=SLOTS)
    uniform = ragged()
    forgotten = tf.RaggedTensor.from_row_splits(uniform.values, uniform.row_splits)
    assert forgotten.uniform_row_length is None
    for keys in (uniform, forgotten):
        if name == "SlotEmbedding":
            assert layer(keys).shape == (*KEYS.shape[:2], DIM)
            np.testing.assert_array_equal(layer(keys), layer(KEYS))
        else:
            assert layer(keys).shape == (*keys.shape, DIM)
            embeddings = TABLE[keys.flat_values.numpy()]
            np.testing.assert_array_equal(layer(keys).flat_values, embeddings)
    with pytest.raises(tf.errors.InvalidArgumentError, match="-1"):
        layer(uniform - 1)


def test_ragged_keys_with_other_numbers_of_slots(family):
    keys = tf.ragged.constant([[[1], [2]], [[3], [4], [5], [6]]], dtype=tf.int64)  # 3 on average
    with pytest.raises(tf.errors.InvalidArgumentError, match="slots of rows of keys"):
        layer_of(family, "SlotEmbedding", slot_num=SLOTS)(keys)
    with pytest.raises(ValueError, match="as many slots in each row"):
        layer_of(family, "SlotEmbedding")(keys)


@pytest.mark.parametrize("name", BOTH)
def test_keys_outside_the_table(family, name):
    for bad in (ROWS, -2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
            layer_of(family, name)(np.full((1, 1, 1), bad))
    for invalid_key in (100, None):
        layer = layer_of(family, name, invalid_key=invalid_key)
        with pytest.raises(tf.errors.InvalidArgumentError, match="-1"):
            layer(KEYS)
    other = layer_of(family, name, invalid_key=100)
    np.testing.assert_array_equal(
        other(np.where(KEYS < 0, 100, KEYS)), layer_of(family, name)(KEYS)
    )


@pytest.mark.parametrize("name", BOTH)
def test_shapes_that_are_known_when_keys_come(family, name):
    arguments = {"slot_num": SLOTS} | ({} if name == "SlotEmbedding" else {"nnz_per_slot": NNZ})
    layer = layer_of(family, name, **arguments)
    layer.build(None)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64)])
    def look_up(keys):
        result = layer(keys)
        assert result.shape[1:] == layer(KEYS).shape[1:]
        return result

    np.testing.assert_array_equal(look_up(KEYS), layer(KEYS))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        look_up(KEYS[:, :2])
    for wrong in (KEYS[:, :2], KEYS[0], KEYS[None]):
        with pytest.raises(ValueError, match=r"keys must be \(None, 3, .*\), got shape"):
            layer(wrong)


@pytest.mark.parametrize("name", BOTH)
def test_mixed_precision(family, name):
    layer = layer_of(family, name, dtype="mixed_bfloat16")
    result, gradient = tf.function(trained)(layer, table_of(layer), KEYS)
    assert [result.dtype, gradient.dtype, table_of(layer).dtype] == ["bfloat16", *["float32"] * 2]
    exact = layer_of(family, name)(KEYS)
    np.testing.assert_array_equal(result, tf.cast(exact, tf.bfloat16))


@pytest.mark.parametrize("name", BOTH)
def test_configurations(family, name):
    package, _ = FAMILIES[family]
    own = {"combiner": "mean"} if name == BOTH[0] else {"nnz_per_slot": 2, "dynamic_input": True}
    shared = {"slot_num": 3, "invalid_key": -5, "dtype": "mixed_bfloat16", "name": "tables"}
    of_rows = {
        "embeddings_initializer": "ones",
        "embeddings_regularizer": package.regularizers.L2(0.5),
        "embeddings_constraint": "NonNeg",
    }
    option = EmbeddingVariableOption(filter_option=CounterFilter(2), capacity=7)
    for input_dim, more in ((ROWS, of_rows), (None, {"ev_option": option})):
        layer = layer_of(family, name, input_dim, **own, **shared, **more)
        other = type(layer).from_config(layer.get_config())
        assert other.get_config() == layer.get_config()
        assert other.ev_option == (None if input_dim else option)
        assert {**own, "slot_num": 3, "invalid_key": -5}.items() <= layer.get_config().items()
        if input_dim:
            other.build(KEYS.shape)
            assert float(sum(other.losses)) == 0.5 * ROWS * DIM
            assert type(other.embeddings_constraint) is package.constraints.NonNeg


@pytest.mark.parametrize("name", BOTH)
def test_keys_without_a_bound(family, name):
    initializer = tf.constant_initializer(0.25)
    layer = layer_of(
        family, name, None, ev_option=OPTION, embeddings_initializer=initializer, slot_num=1
    )
    keys = np.array([[[10**12, -1]], [[7, 7]]])
    assert not np.any(layer(keys))  # in inference no key gets a row
    first = 0.25 * np.array([1, 2]) if name == "SlotEmbedding" else [[0.25, 0], [0.25, 0.25]]
    with tf.GradientTape() as tape:
        result = layer(keys)
    np.testing.assert_array_equal(result[:, 0, ..., 0], first)
    gradient = tape.gradient(result, table_of(layer))
    assert sorted(gradient.values[:, 0].numpy()) == [1, 2]
    np.testing.assert_array_equal(layer(keys), result)
    assert not np.any(layer(keys + 1))
    assert isinstance(layer.table, fusion.EmbeddingVariable)
    layer.trainable = False
    with tf.GradientTape():
        assert not np.any(layer(keys + 1))


@pytest.mark.parametrize("name", BOTH)
def test_bad_arguments(family, name):
    def layer(*given, **arguments):
        return getattr(FAMILIES[family][1], name)(*given, **arguments)

    for error, match, given, arguments in (
        (ValueError, "input_dim must be at least 1, got 0", (0, 4), {}),
        (TypeError, "output_dim must be an integer, got 2.5", (8, 2.5), {}),
        (ValueError, "slot_num must be at least 1, got 0", (8, 4), {"slot_num": 0}),
        (TypeError, "invalid_key must be an integer", (8, 4), {"invalid_key": "none"}),
        (ValueError, "ev_option is for input_dim=None, got", (8, 4), {"ev_option": OPTION}),
        (TypeError, "ev_option must be an EmbeddingV", (None, 4), {"ev_option": 5}),
        (TypeError, "dtype must be one of", (None, 4), {"dtype": "float16"}),
        (
            ValueError,
            "embeddings_regularizer needs a table of input_dim rows",
            (None, 4),
            {"embeddings_regularizer": "l2"},
        ),
    ):
        with pytest.raises(error, match=match):
            layer(*given, **arguments)
    with pytest.raises(ValueError, match="has no table yet"):
        _ = layer(8, 4).table
    with pytest.raises(TypeError, match="keys must be int32 or int64, got float32"):
        layer(None, 4, ev_option=OPTION)(KEYS.astype(np.float32))


def test_bad_arguments_of_one(family):
    with pytest.raises(ValueError, match="combiner must be one of"):
        layer_of(family, "SlotEmbedding", combiner="max")
    with pytest.raises(ValueError, match="nnz_per_slot must be at least 1, got 0"):
        layer_of(family, "AllToAllDenseEmbedding", nnz_per_slot=0)


def test_the_public_names_are_keras_3s():
    for name in BOTH:
        assert getattr(fusion.keras.layers, name) is getattr(fusion.keras.keras3, name)
    assert {*BOTH, "Embedding"} <= {*dir(fusion.keras.layers)}
    with pytest.raises(AttributeError, match=r"'fusion\.keras\.layers' has no attribute 'Dense'"):
        _ = fusion.keras.layers.Dense


def test_under_tf_use_legacy_keras_they_are_tf_kerass():
    code = """if True:
        import sys
        import tensorflow as tf
        import fusion
        import fusion.keras.tf_keras as ours
        from fusion.keras.layers import AllToAllDenseEmbedding, SlotEmbedding
        assert (AllToAllDenseEmbedding, SlotEmbedding) == (
            ours.AllToAllDenseEmbedding, ours.SlotEmbedding
        )
        assert issubclass(SlotEmbedding, tf.keras.layers.Layer)
        assert tf.keras.saving.get_registered_object("fusion>SlotEmbedding") is SlotEmbedding
        assert "keras" not in sys.modules
    """
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_another_backend_is_an_error(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"fusion\.keras\.layers\.SlotEmbedding needs Keras"):
        layer_of("keras3", "SlotEmbedding")
