"""Models with layers of slots in both Kerases: trained, saved, loaded and exported."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.tables import EmbeddingVariableOption
from tests.embedding_variables.plain import loss_of_step
from tests.keras.slots import (
    DIM,
    FAMILIES,
    KEYS,
    LABELS,
    NNZ,
    ROWS,
    SLOTS,
    TABLE,
    layer_of,
    ragged,
)

OPTION = EmbeddingVariableOption(capacity=50, seed=4)


def stock_layer(package: Any) -> Any:
    """The embeddings of all keys by stock TensorFlow, as optimizers take a key that is repeated."""

    class Stock(package.layers.Layer):
        def build(self, input_shape):
            initializer = package.initializers.Constant(TABLE)
            self.table = self.add_weight(shape=TABLE.shape, initializer=initializer)

        def call(self, inputs, training=None):
            return tf.one_hot(tf.cast(inputs, tf.int64), ROWS) @ tf.convert_to_tensor(self.table)

    return Stock()


def dense_layers(package: Any) -> list[Any]:
    sizes = ((8, "relu"), (8, "relu"), (1, None))
    seeds = [package.initializers.RandomUniform(seed=seed) for seed, _ in enumerate(sizes)]
    return [
        package.layers.Dense(units, activation, kernel_initializer=seed)
        for (units, activation), seed in zip(sizes, seeds, strict=True)
    ]


def subclassed(package: Any, embedding_layer: Any) -> Any:
    """SparseOperationKit's DemoModel."""

    class DemoModel(package.Model):
        def __init__(self):
            super().__init__()
            self.embedding_layer = embedding_layer
            self.dense_layers = dense_layers(package)

        def call(self, inputs, training=True):
            hidden = self.embedding_layer(inputs, training=training)
            hidden = tf.reshape(hidden, [-1, SLOTS * NNZ * DIM])
            for layer in self.dense_layers:
                hidden = layer(hidden)
            return hidden

    return DemoModel()


def functional(package: Any, embedding_layer: Any) -> Any:
    """The same, as a function makes it there."""
    inputs = package.Input((SLOTS, NNZ), dtype="int64")
    hidden = package.layers.Reshape((SLOTS * NNZ * DIM,))(embedding_layer(inputs))
    for layer in dense_layers(package):
        hidden = layer(hidden)
    return package.Model(inputs, hidden)


def sequential(package: Any, embedding_layer: Any) -> Any:
    return package.Sequential([embedding_layer, package.layers.Flatten(), *dense_layers(package)])


def losses_of_steps(package: Any, model: Any) -> list[float]:
    """SparseOperationKit's training step, with two optimizers."""
    of_batch = package.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    embedding, dense = (package.optimizers.Adam(0.1) for _ in range(2))
    model(KEYS)
    tables, others = model.trainable_variables[:1], model.trainable_variables[1:]
    for optimizer, variables in ((embedding, tables), (dense, others)):
        optimizer.build(variables)

    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = tf.nn.compute_average_loss(of_batch(labels, logits))
        of_dense, of_tables = tape.gradient(loss, [others, tables])
        embedding.apply_gradients(zip(of_tables, tables, strict=True))
        dense.apply_gradients(zip(of_dense, others, strict=True))
        return loss

    return [float(step(tf.constant(KEYS), tf.constant(LABELS))) for _ in range(4)]


def losses_of_fit(package: Any, model: Any) -> list[float]:
    model.compile(package.optimizers.Adam(0.1), package.losses.BinaryCrossentropy(from_logits=True))
    history = model.fit(KEYS, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
    losses: list[float] = history.history["loss"]
    return losses


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("build", "train"),
    [(subclassed, losses_of_steps), (functional, losses_of_fit), (sequential, losses_of_fit)],
)
def test_sparse_operation_kits_model_trains_as_with_a_stock_layer(family, build, train):
    package, _ = FAMILIES[family]
    layer = layer_of(family, "AllToAllDenseEmbedding", slot_num=SLOTS, nnz_per_slot=NNZ)
    losses = train(package, build(package, layer))
    assert losses[-1] < losses[0]
    expected = train(package, build(package, stock_layer(package)))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("rows", "kind"), [(ROWS, {"mode": "distributed"}), (None, {"ev_option": OPTION})]
)
def test_a_subclassed_model_has_each_table_once(family, rows, kind):
    """Keras 3 builds it by a call with symbolic inputs, in which weights have no variables yet."""
    package, _ = FAMILIES[family]
    model = subclassed(package, layer_of(family, "AllToAllDenseEmbedding", rows, **kind))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(KEYS))
    assert len(model.trainable_variables) == 1 + 2 * len(dense_layers(package))
    assert None not in tape.gradient(loss, model.trainable_variables)


#: Those whose models can have ragged inputs, as those of early releases of Keras 3 cannot.
WITH_RAGGED_INPUTS = [
    name
    for name, (package, _) in FAMILIES.items()
    if "ragged" in signature(package.Input).parameters
]


@pytest.mark.parametrize("family", WITH_RAGGED_INPUTS)
@pytest.mark.parametrize("name", ["SlotEmbedding", "AllToAllDenseEmbedding"])
def test_models_of_ragged_keys(family, name):
    package, _ = FAMILIES[family]
    layer = layer_of(family, name, slot_num=SLOTS)
    inputs = package.Input((SLOTS, None), dtype="int64", ragged=True)
    outputs = layer(inputs)
    found = package.Model(inputs, outputs).predict(ragged(), verbose=0)
    if name == "SlotEmbedding":
        assert tuple(outputs.shape) == (None, SLOTS, DIM)
        np.testing.assert_array_equal(found, layer(KEYS))
    else:
        for splits in zip(found.nested_row_splits, ragged().nested_row_splits, strict=True):
            np.testing.assert_array_equal(*splits)
        np.testing.assert_array_equal(found.flat_values, TABLE[ragged().flat_values.numpy()])


def saved_model_of(family: str) -> Any:
    """A model of both layers, one with a table of rows, and one of keys without a bound."""
    package, _ = FAMILIES[family]
    inputs = package.Input((SLOTS, NNZ), dtype="int64", name="keys")
    sums = layer_of(family, "SlotEmbedding", combiner="mean", slot_num=SLOTS)(inputs)
    rows = layer_of(family, "AllToAllDenseEmbedding", None, ev_option=OPTION)(inputs)
    parts = [package.layers.Flatten()(part) for part in (sums, rows)]
    hidden = package.layers.Concatenate()(parts)
    model = package.Model(inputs, package.layers.Dense(1)(hidden))
    model.compile(package.optimizers.SGD(0.1), "mse")
    return model


FILES = [(family, file) for family in FAMILIES for file in ("model.keras", "some.weights.h5")]


@pytest.mark.parametrize(("family", "file"), [*FILES, ("tf_keras", "saved_model")])
def test_files(family, file, tmp_path):
    package, _ = FAMILIES[family]
    model, path = saved_model_of(family), tmp_path / file
    model.train_on_batch(KEYS, LABELS)
    if file == "some.weights.h5":
        model.save_weights(path)
        loaded = saved_model_of(family)
        assert not np.array_equal(loaded(KEYS), model(KEYS))
        loaded.load_weights(path)
    else:
        model.save(path)
        loaded = package.models.load_model(path)
    np.testing.assert_array_equal(loaded(KEYS), model(KEYS))
    for one, other in zip(loaded.layers, model.layers, strict=True):
        assert type(one) is type(other)
        assert len(one.weights) == len(other.weights)
    assert loss_of_step(loaded, KEYS, LABELS) == loss_of_step(model, KEYS, LABELS)
    np.testing.assert_array_equal(loaded(KEYS), model(KEYS))


@pytest.mark.parametrize("family", FAMILIES)
def test_exported_models(family, tmp_path):
    model, path = saved_model_of(family), str(tmp_path)
    model.train_on_batch(KEYS, LABELS)
    model.export(path, **({} if family == "tf_keras" else {"verbose": False}))
    served = tf.saved_model.load(path)
    keys = np.concatenate([KEYS, np.full_like(KEYS, ROWS - 1)])  # of which one has no row
    np.testing.assert_allclose(served.serve(keys), model(keys), rtol=1e-6)
