"""Our Embedding layer beside Keras's: the same numbers, gradients, weights and configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.keras.models import IDS, LABELS, assert_same_state, fit, functional, ops_of
from tests.tiers import ALL_CASES

Embedding = fusion.keras.layers.Embedding
TABLE = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)

INPUTS: dict[str, Any] = {
    "vector": tf.constant([3, 0, 6, 3]),
    "matrix": tf.constant([[1, 2], [6, 1], [0, 0]]),
    "cube": tf.constant([[[1, 2], [3, 4]]], tf.int64),
    "negative": tf.constant([[-1, 2], [-7, 0]]),
    "other dtype": tf.constant([[1, 2], [6, 1]], tf.uint8),
    "floats": tf.constant([[1.0, 2.7]]),
    "empty": tf.zeros([0, 4], tf.int64),
    "ragged": tf.ragged.constant([[1, -2], [], [3, 3, 6]]),
    "ragged twice": tf.ragged.constant([[[1], []], [[2, -1]]]),
    "sparse": tf.sparse.from_dense([[1, 0, -2], [0, 0, 0], [5, 5, 1]]),
}


def pair(**arguments: Any) -> list[Any]:
    layers = [kind(7, 3, name="e", **arguments) for kind in (keras.layers.Embedding, Embedding)]
    for layer in layers:
        layer.build()
        layer.set_weights([TABLE])
    return layers


def result_and_gradient(layer: Any, ids: Any, in_graph: bool) -> tuple[Any, Any]:
    def run(ids: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            result = layer(ids)
            flat = result.flat_values if isinstance(result, tf.RaggedTensor) else result
            loss = tf.reduce_sum(tf.cast(flat, tf.float32) ** 2)
        return result, tape.gradient(loss, layer.trainable_variables[0].value)

    return (tf.function(run) if in_graph else run)(ids)


CASES = [
    *((kind, "float32", in_graph) for kind in INPUTS for in_graph in (False, True)),
    *(("matrix", dtype, True) for dtype in ("mixed_float16", "bfloat16", "float64")),
    *((kind, "mixed_float16", True) for kind in ("ragged", "sparse")),
]


@pytest.mark.parametrize(("kind", "dtype", "in_graph"), CASES)
def test_results_and_gradients_have_the_bits_of_keras(kind, dtype, in_graph):
    stock, ours = (result_and_gradient(x, INPUTS[kind], in_graph) for x in pair(dtype=dtype))
    assert type(stock[0]) is type(ours[0])
    assert stock[0].dtype == ours[0].dtype
    assert stock[0].shape == ours[0].shape
    flat = [getattr(r, "flat_values", r).numpy() for r in (stock[0], ours[0])]
    np.testing.assert_array_equal(*flat)
    assert isinstance(ours[1], tf.IndexedSlices)
    assert isinstance(stock[1], tf.IndexedSlices)
    if kind == "sparse":  # distinct ids, which Keras's layer has in another order
        orders = [np.argsort(gradient.indices) for _, gradient in (stock, ours)]
    else:
        orders = [np.arange(gradient.indices.shape[0]) for _, gradient in (stock, ours)]
    for name in ("indices", "values"):
        arrays = (getattr(gradient, name).numpy() for _, gradient in (stock, ours))
        np.testing.assert_array_equal(
            *(array[order] for array, order in zip(arrays, orders, strict=True))
        )


@pytest.mark.parametrize("ids", [[[7]], [[0, -8]]])
def test_ids_outside_the_table_are_errors_as_in_keras(ids):
    for layer in pair():
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(8|7|-1) is not in \[0, 7\)"):
            layer(tf.constant(ids))


def test_the_table_is_gathered_from():
    stock, ours = pair()
    ids = INPUTS["matrix"]
    assert "ReadVariableOp" in ops_of(stock, ids)
    ops = ops_of(ours, ids)
    assert "ResourceGather" in ops
    assert "ReadVariableOp" not in ops


def test_in_a_model_of_mixed_precision_that_casts_variables():
    class Model(keras.Model):
        def __init__(self, kind: Any) -> None:
            super().__init__(dtype="mixed_float16")
            self.embedding = kind(7, 3, dtype="mixed_float16")

        def call(self, ids: Any) -> Any:
            return self.embedding(ids)

    ids = INPUTS["matrix"]
    stock, ours = Model(keras.layers.Embedding), Model(Embedding)
    for model in (stock, ours):
        model(ids)
        model.set_weights([TABLE])
    np.testing.assert_array_equal(stock(ids), ours(ids))
    assert "ReadVariableOp" not in ops_of(ours, ids)


def test_masks_are_those_of_keras():
    stock, ours = pair(mask_zero=True)
    masks = [layer(INPUTS["matrix"])._keras_mask for layer in (stock, ours)]
    np.testing.assert_array_equal(*masks)
    assert not np.all(masks[1])
    assert pair()[1].compute_mask(INPUTS["matrix"]) is None


STEPS = 200 if ALL_CASES else 40
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_has_the_bits_of_keras(optimizer):
    models = [functional(kind) for kind in (keras.layers.Embedding, Embedding)]
    losses = [fit(model, OPTIMIZERS[optimizer](), STEPS) for model in models]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    assert_same_state(*models)


def test_with_a_regularizer_and_a_constraint():
    arguments = {"embeddings_regularizer": "l2", "embeddings_constraint": "max_norm"}
    models = [functional(kind, **arguments) for kind in (keras.layers.Embedding, Embedding)]
    losses = [fit(model, keras.optimizers.SGD(0.05)) for model in models]
    assert losses[0] == losses[1]
    assert_same_state(*models)


def test_weights_go_to_keras_and_back(tmp_path: Path):
    stock, ours = (functional(kind) for kind in (keras.layers.Embedding, Embedding))
    fit(ours, "adagrad")
    path = str(tmp_path / "a.weights.h5")
    ours.save_weights(path)
    stock.load_weights(path)
    assert_same_state_of_weights(stock, ours)
    fit(stock, "adagrad")
    stock.save_weights(path)
    ours.load_weights(path)
    assert_same_state_of_weights(stock, ours)


def assert_same_state_of_weights(one: Any, other: Any) -> None:
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_in_a_file(tmp_path: Path):
    model = functional(Embedding, mask_zero=False)
    fit(model, "adam")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("table_0")) is Embedding
    assert_same_state(model, loaded)
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), loaded.predict(IDS, verbose=0))


def test_an_exported_model_has_stock_ops_alone(tmp_path: Path):
    model = functional(Embedding)
    model.export(tmp_path / "serving", verbose=False)
    served = tf.saved_model.load(tmp_path / "serving")
    np.testing.assert_allclose(served.serve(IDS), model(IDS), rtol=1e-6)
    definition = served.signatures["serving_default"].graph.as_graph_def()
    ops = {node.op for function in definition.library.function for node in function.node_def}
    assert "ResourceGather" in ops
    assert not [op for op in ops if "Fused" in op or "Grouped" in op]


def test_the_configuration_is_that_of_keras():
    arguments = {
        "embeddings_initializer": "ones",
        "embeddings_regularizer": "l2",
        "embeddings_constraint": "non_neg",
        "mask_zero": True,
    }
    stock, ours = pair(**arguments)
    assert stock.get_config() == ours.get_config()
    again = Embedding.from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    assert [w.path for w in stock.weights] == [w.path for w in ours.weights] == ["e/embeddings"]


def test_the_initial_table_may_be_given():
    np.testing.assert_array_equal(Embedding(7, 3, weights=TABLE).get_weights()[0], TABLE)


def test_lora_is_that_of_keras():
    layers = pair()
    for layer in layers:
        keras.utils.set_random_seed(1)
        layer.enable_lora(2)
        layer.lora_embeddings_b.assign(np.ones((2, 3), np.float32))
    stock, ours = layers
    np.testing.assert_array_equal(stock(INPUTS["matrix"]), ours(INPUTS["matrix"]))
    assert not np.array_equal(ours(INPUTS["matrix"]), TABLE[INPUTS["matrix"].numpy()])


def test_xla_compiles_it():
    models = [functional(kind) for kind in (keras.layers.Embedding, Embedding)]
    for model in models:
        model.compile("sgd", "mse", jit_compile=True)
        model.fit(IDS, LABELS, 16, verbose=0, shuffle=False)
    assert_same_state(*models)


def test_another_backend_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"layers\.Embedding needs .* got 'jax'; set KERAS_BACK"):
        Embedding(7, 3)
