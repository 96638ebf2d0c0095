"""Our `DenseFeatures` in training: ops around the gathers of all columns with do_fusion."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion.lookup import VERSIONS
from tests.feature_column.dense_layers import (
    ROWS,
    assert_close,
    embedding,
    fc,
    identity,
    op_types,
    our_layer,
    stock_layer,
)
from tests.feature_column.kinds import KINDS, Batch, build, of_each_combiner
from tests.feature_column.test_dense_features import CATEGORICAL, features, mixed
from tests.feature_column.test_grouped_columns import as_tensors
from tests.reference import assert_same_bits, gradient_parts

OPS = ("GroupedEmbeddingPreLookUp", "GroupedEmbeddingPostLookUp", "GroupedEmbeddingPostLookUpGrad")


def step(layer: Any, batch: dict[str, Any], compiled: bool = True) -> tuple[Any, Any, list[str]]:
    """The result in training, gradients of the tables as matrices, and the ops that it took."""
    layer(batch)
    width = layer(batch).shape[-1]
    top = tf.constant(np.random.default_rng(1).standard_normal((1000, width)), tf.float32)

    def run(given: dict[str, Any]) -> Any:
        tables = [weight.value for weight in layer.trainable_weights]
        with tf.GradientTape() as tape:
            result = layer(given, training=True)
            flat = tf.reshape(result, [-1, width])
            loss = tf.reduce_sum(flat * top[: tf.shape(flat)[0]])
        gradients = tape.gradient(loss, tables)
        return result, [gradient_parts(*pair)[1] for pair in zip(gradients, tables, strict=True)]

    if not compiled:
        return *run(batch), []
    function = tf.function(run, autograph=False)
    return *function(batch), op_types(function.get_concrete_function(batch))


def assert_trained(types: list[str]) -> None:
    """One op before the gathers, one behind them, one for the gradients."""
    assert [types.count(op) for op in OPS] == [1, 1, 1]
    assert not [op for op in types if op.startswith("FusedEmbedding") or "Unique" in op]


def without_fusion(layer: Any) -> Any:
    """The numbers of the same columns with ops of their own."""

    def call(given: dict[str, Any], training: bool | None = None) -> Any:
        del training
        return layer(given)

    call.trainable_weights = layer.trainable_weights  # type: ignore[attr-defined]
    return call


@pytest.mark.parametrize("lengths", [(2, 1, 0, 3, 1), (0, 0, 0, 0, 0), ()])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_kind(kind: str, lengths: tuple[int, ...]) -> None:
    batch = as_tensors(Batch(lengths).features())
    layer = our_layer(build(of_each_combiner(kind), "v2"))
    result, gradients, types = step(layer, batch)
    assert_trained(types)
    expected, of_tables, _ = step(without_fusion(layer), batch, compiled=False)
    assert_same_bits(result.numpy(), expected.numpy())
    for found, gradient in zip(gradients, of_tables, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}], ids=str)
@pytest.mark.parametrize("kind", CATEGORICAL)
def test_features_of_every_kind(kind: str, options: dict[str, Any]) -> None:
    columns = [embedding(CATEGORICAL[kind](), **options), fc.numeric_column("wide", 4)]
    layer = our_layer(columns, do_fusion="v1")
    result, gradients, _ = step(layer, features(), compiled=False)
    expected, of_tables, _ = step(without_fusion(layer), features(), compiled=False)
    check = assert_close if "max_norm" in options else assert_same_bits
    check(result.numpy(), expected.numpy())
    for found, gradient in zip(gradients, of_tables, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-5, atol=1e-6)


def test_other_columns_stay_in_their_place() -> None:
    layer = our_layer(mixed("v2"))
    result, _, types = step(layer, features())
    assert [types.count(op) for op in OPS] == [1, 1, 1]
    assert_same_bits(result.numpy(), layer(features()).numpy())
    assert not set(OPS) & set(step(our_layer(mixed()), features())[2])


def test_stacked() -> None:
    columns = [embedding(identity(name)) for name in ("sparse", "id", "several")]
    layer = our_layer(columns, aggregation="stack", do_fusion="v2")
    result, _, types = step(layer, features())
    assert result.shape == (ROWS, 3, 4)
    assert_same_bits(result.numpy(), layer(features()).numpy())
    assert_trained(types)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_fit_gives_the_losses_of_stock_columns(optimizer: str) -> None:
    names = ("id", "several")
    labels = np.random.default_rng(2).random((ROWS, 1)).astype(np.float32)
    batch = {name: features()[name] for name in names}
    losses = []
    for version in (None, *VERSIONS):
        keras.utils.set_random_seed(3)
        inputs = {
            name: keras.Input(value.shape[1:], dtype=value.dtype.name, name=name)
            for name, value in batch.items()
        }
        layer = our_layer([embedding(identity(name)) for name in names], do_fusion=version)
        model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
        model.compile(optimizer, "mse")
        history = model.fit(batch, labels, epochs=6, batch_size=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    assert losses[1] == losses[2]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_gradients_are_those_of_stock_columns() -> None:
    columns = [embedding(identity(name)) for name in ("sparse", "id", "several")]
    ours, stock = our_layer(columns, do_fusion="v2"), stock_layer(columns)
    result, gradients, _ = step(ours, features())
    stock(features())
    top = np.random.default_rng(1).standard_normal((1000, result.shape[-1])).astype(np.float32)
    with tf.GradientTape() as tape:
        expected = stock(features())
        loss = tf.reduce_sum(expected * top[:ROWS])
    assert_same_bits(result.numpy(), expected.numpy())
    tables = {variable.name.split("/")[-2]: variable for variable in stock.trainable_variables}
    of_stock = tape.gradient(loss, list(tables.values()))
    assert len(of_stock) == len(gradients)
    for found, gradient, table in zip(gradients, of_stock, tables.values(), strict=True):
        assert_same_bits(found.numpy(), gradient_parts(gradient, table)[1].numpy())
