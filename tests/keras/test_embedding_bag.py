"""Our EmbeddingBag beside a reduction of looked-up rows by stock ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.keras.models import ops_of
from tests.keras.releases import HAS_RAGGED_INPUTS

EmbeddingBag = fusion.keras.layers.EmbeddingBag
COMBINERS = ("sum", "mean", "sqrtn", "max")
RNG = np.random.default_rng(2)
ROWS, DIM, BATCH, LENGTH = 20, 5, 9, 6
TABLE = RNG.normal(size=(ROWS, DIM)).astype(np.float32)
#: Rows 2 and 3 are all padding, 0; it is among other ids elsewhere.
IDS = RNG.integers(0, ROWS, (BATCH, LENGTH))
IDS[2:4] = 0
IDS[:, 1] = 0
#: Of both signs, and zeros.
WEIGHTS = RNG.normal(size=IDS.shape).astype(np.float32)
WEIGHTS[5:7] = 0
LENGTHS = [6, 0, 6, 3, 6, 1, 6, 2, 6]
KINDS = ("dense", "ragged", "sparse")


def given(kind: str, array: Any) -> Any:
    """An array as a layer is given it: all of it, or the first LENGTHS of each row."""
    if kind == "dense":
        return tf.constant(array)
    ragged = tf.RaggedTensor.from_tensor(tf.constant(array), LENGTHS)
    return ragged if kind == "ragged" else ragged.to_sparse()


def is_entry(kind: str, ids: Any, padding: int | None) -> Any:
    lengths = np.full(BATCH, LENGTH) if kind == "dense" else np.array(LENGTHS)
    entries = np.arange(LENGTH) < lengths[:, None]
    return entries if padding is None else entries & (ids != padding)


def expected(table: tf.Tensor, ids: Any, weights: Any, entries: Any, combiner: str) -> tf.Tensor:
    """By stock ops, in float64, with a gradient."""
    mask = tf.constant(entries[..., None])
    rows = tf.gather(table, np.where(entries, ids, 0))
    if combiner == "max":
        largest = tf.reduce_max(tf.where(mask, rows, tf.constant(-np.inf, rows.dtype)), 1)
        return tf.where(tf.reduce_any(mask, 1), largest, tf.zeros_like(largest))
    factors = tf.cast(mask, rows.dtype) * tf.cast(weights[..., None], rows.dtype)
    total = tf.reduce_sum(rows * factors, 1)
    if combiner == "sum":
        return total
    divisor = factors if combiner == "mean" else factors**2
    divisor = tf.reduce_sum(divisor, 1)
    return tf.math.divide_no_nan(total, divisor if combiner == "mean" else tf.sqrt(divisor))


def bag(**arguments: Any) -> Any:
    return EmbeddingBag(ROWS, DIM, weights=TABLE, **arguments)


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_results_and_gradients_are_those_of_stock_ops(combiner, kind, weighted, padding):
    if weighted and combiner == "max":
        return
    ids = np.where(IDS == 0, -1, IDS) if padding == -1 else IDS
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    table = tf.constant(TABLE, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(table)
        wanted = expected(table, ids, weights, is_entry(kind, ids, padding), combiner)
        loss = tf.reduce_sum(wanted**2)
    of_table = tf.convert_to_tensor(tape.gradient(loss, table))
    assert np.any(wanted)

    layer = bag(combiner=combiner, padding=padding)
    inputs = [given(kind, ids)] + ([given(kind, WEIGHTS)] if weighted else [])

    def run(inputs: Any, training: bool | None) -> Any:
        with tf.GradientTape() as tape:
            result = layer(*inputs, training=training)
            loss = tf.reduce_sum(result**2)
        return result, tape.gradient(loss, layer._embeddings.value)

    for function, training in ((run, True), (run, False), (tf.function(run), None)):
        result, gradient = function(inputs, training)
        np.testing.assert_allclose(result, wanted, rtol=2e-4, atol=2e-5)
        if training is not False:
            assert isinstance(gradient, tf.IndexedSlices)
        dense = tf.convert_to_tensor(gradient)
        np.testing.assert_allclose(dense, of_table, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_without_weights_they_have_the_bits_of_a_stock_lookup(combiner, training):
    ids = given("sparse", IDS)
    stock = tf.nn.safe_embedding_lookup_sparse(tf.constant(TABLE), ids, combiner=combiner)
    np.testing.assert_array_equal(bag(combiner=combiner)(ids, training=training), stock)


def test_gradients_have_distinct_ids_and_none_of_padding():
    layer = bag(combiner="sum", padding=0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(given("dense", IDS), training=True))
    gradient = tape.gradient(loss, layer._embeddings.value)
    assert sorted(gradient.indices.numpy()) == sorted({*IDS.reshape(-1).tolist()} - {0})


def test_gradients_of_weights():
    weights = tf.constant(WEIGHTS)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(bag(combiner="sum")(given("dense", IDS), weights, training=True))
    wanted = TABLE[IDS].sum(-1)
    np.testing.assert_allclose(tape.gradient(loss, weights), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_padded_row_that_is_not_finite_is_not_seen(combiner, training):
    table = TABLE.copy()
    table[0] = np.nan
    layer = EmbeddingBag(ROWS, DIM, weights=table, combiner=combiner, mask_zero=True)
    weights = () if combiner == "max" else (given("dense", np.ones_like(WEIGHTS)),)
    for inputs in ([given("dense", IDS)], [given("dense", IDS), *weights]):
        assert np.all(np.isfinite(layer(*inputs, training=training)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_no_bags_and_bags_of_nothing(shape, combiner, training):
    result = bag(combiner=combiner)(tf.zeros(shape, tf.int32), training=training)
    np.testing.assert_array_equal(result, np.zeros((shape[0], DIM)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("bad", [-1, ROWS])
@pytest.mark.parametrize("padding", [None, 0])
def test_an_id_outside_the_table_is_an_error(padding, bad, combiner, training):
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
        bag(combiner=combiner, padding=padding)(tf.constant([[1, bad]]), training=training)


def test_mask_zero_is_padding_zero():
    ids = given("dense", IDS)
    results = [bag(padding=0)(ids), bag(mask_zero=True)(ids), bag()(ids)]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.allclose(results[0], results[2])


def test_a_vector_of_ids_is_bags_of_one():
    np.testing.assert_array_equal(bag()(tf.constant([3, 4])), TABLE[[3, 4]])
    weighted = bag(combiner="sum")(tf.constant([3, 4]), tf.constant([2.0, -1.0]))
    np.testing.assert_array_equal(weighted, TABLE[[3, 4]] * [[2], [-1]])


def test_other_dtypes_of_ids():
    for dtype in ("uint8", "float32", "int64"):
        np.testing.assert_array_equal(bag()(tf.constant([[3]], dtype)), TABLE[[3]])


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float16", "float64"])
def test_dtypes(dtype):
    layer = bag(dtype=dtype)
    for training in (True, False):
        result = layer(given("dense", IDS), given("dense", WEIGHTS), training=training)
        assert result.dtype == layer.compute_dtype
    unweighted = np.asarray(layer(given("dense", IDS)), np.float64)
    np.testing.assert_allclose(unweighted, TABLE[IDS].mean(1), rtol=2e-2, atol=2e-2)


def test_the_ops():
    ids = given("dense", IDS)
    trained = ops_of(lambda ids: bag_of_the_ops(ids, training=True), ids)
    assert {"GroupedEmbeddingPreLookUp", "ResourceGather", "GroupedEmbeddingPostLookUp"} <= {
        *trained
    }
    served = ops_of(lambda ids: bag_of_the_ops(ids, training=False), ids)
    assert {"ReadEmbeddingTables", "FusedEmbeddingLookup"} <= {*served}
    largest = ops_of(largest_of_the_ops, ids)
    assert "ResourceGather" in largest
    assert "ReadVariableOp" not in {*trained, *served, *largest}


bag_of_the_ops = bag(padding=0)
largest_of_the_ops = bag(combiner="max")


def model(kind: str = "functional") -> Any:
    keras.utils.set_random_seed(1)
    bags = EmbeddingBag(ROWS, DIM, combiner="sqrtn", padding=0, name="bag")
    head = keras.layers.Dense(1, name="head")
    if kind == "sequential":
        return keras.Sequential([keras.Input((LENGTH,), dtype="int64"), bags, head])
    if kind == "functional":
        ids = keras.Input((LENGTH,), dtype="int64")
        return keras.Model(ids, head(bags(ids)))

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.head = bags, head

        def call(self, ids: Any) -> Any:
            return self.head(self.bags(ids))

    return Model()


LABELS = RNG.integers(0, 2, (BATCH, 1)).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("functional", "sgd"), ("sequential", "adagrad"), ("subclassed", "adam")],
)
def test_models_are_trained(kind, optimizer):
    one = model(kind)
    one.compile(optimizer, "mse")
    losses = one.fit(IDS, LABELS, 4, 30, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]
    (table,) = (w for w in one.weights if w.name == "embeddings")
    assert table.shape == (ROWS, DIM)
    assert one.predict(IDS, verbose=0).shape == (BATCH, 1)


def test_weights_may_be_a_second_input():
    ids, weights = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,))
    result = EmbeddingBag(ROWS, DIM, weights=TABLE, combiner="sum")(ids, weights)
    assert result.shape == (None, DIM)
    both = keras.Model([ids, weights], result)
    got = both.predict([IDS, WEIGHTS], verbose=0)
    wanted = np.sum(TABLE[IDS] * WEIGHTS[..., None], 1)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_inputs_of_models_may_be(kind):
    if kind == "ragged" and not HAS_RAGGED_INPUTS:
        with pytest.raises(TypeError, match="ragged"):
            keras.Input((None,), dtype="int64", ragged=True)
        return
    ids = keras.Input((None,), dtype="int64", **{kind: True})
    one = keras.Model(ids, bag(combiner="sum")(ids))
    result = one(given(kind, IDS))
    wanted = [TABLE[row[:length]].sum(0) for row, length in zip(IDS, LENGTHS, strict=True)]
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_in_files(tmp_path: Path):
    one = model()
    one.compile("adagrad", "mse")
    one.fit(IDS, LABELS, verbose=0)
    one.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("bag")) is EmbeddingBag
    np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), one.predict(IDS, verbose=0))
    loaded.fit(IDS, LABELS, verbose=0)

    other = model()
    one.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(other(IDS), one(IDS))

    one.export(tmp_path / "serving", verbose=False)
    served = tf.saved_model.load(tmp_path / "serving")
    np.testing.assert_allclose(served.serve(IDS), one(IDS), rtol=1e-6)


def test_the_configuration():
    layer = EmbeddingBag(ROWS, DIM, "ones", combiner="max", padding=-1, name="b")
    config = layer.get_config()
    assert (config["combiner"], config["padding"], config["input_dim"]) == ("max", -1, ROWS)
    assert EmbeddingBag.from_config(config).get_config() == config


def test_masks_end_here():
    assert bag(mask_zero=True).compute_mask(given("dense", IDS)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"combiner": "median"}, r"combiner must be one of .*'max'.*got 'median'"),
        ({"mask_zero": True, "padding": 3}, r"with mask_zero the padding is 0, got padding=3"),
    ],
)
def test_arguments_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingBag(ROWS, DIM, **arguments)


def test_a_padding_that_is_no_integer():
    with pytest.raises(TypeError, match="integer"):
        bag(padding=1.5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tf.zeros([2, 3, 4], tf.int32)], r"'b': ids must be \[B, L\] or \[B\], got shape"),
        ([tf.zeros([2, 3], tf.int32), tf.zeros([2, 4])], r"'b': weights must have the shape"),
        ([given("ragged", IDS), tf.zeros([9, 6])], r"'b': weights must be a RaggedTensor"),
    ],
)
def test_inputs_that_cannot_be(inputs, message):
    with pytest.raises(ValueError, match=message):
        bag(name="b")(*inputs)


def test_a_maximum_takes_no_weights():
    with pytest.raises(ValueError, match=r"takes no weights: its combiner is 'max'"):
        bag(combiner="max")(given("dense", IDS), given("dense", WEIGHTS))


def test_xla_cannot_compile_it():
    layer = bag(name="b")
    with pytest.raises(ValueError, match=r"'b' cannot be compiled by XLA.*jit_compile"):
        tf.function(layer, jit_compile=True)(given("dense", IDS))
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model().compile("sgd", "mse", jit_compile=True)
