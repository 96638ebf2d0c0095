"""`accelerate`: layers are swapped in place, and the model goes on as it would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from tests.keras.models import (
    COLUMNS,
    DIM,
    IDS,
    LABELS,
    ROWS,
    assert_same_state,
    fit,
    fit_more,
    functional,
    ops_of,
)
from tests.tiers import ALL_CASES

accelerate = fusion.keras.accelerate
STOCK, OURS = keras.layers.Embedding, fusion.keras.layers.Embedding


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rmsprop"])
def test_a_model_in_training_goes_on_with_the_bits_of_keras(optimizer):
    stock, ours, steps = functional(STOCK), functional(STOCK), 200 if ALL_CASES else 20
    assert fit(stock, optimizer) == fit(ours, optimizer)
    weights, slots = [*ours.weights], [*ours.optimizer.variables]
    report = accelerate(ours)
    assert (report.swapped_count, len(report.layers)) == (COLUMNS, COLUMNS)
    assert all(a is b for a, b in zip(weights, ours.weights, strict=True))
    assert all(a is b for a, b in zip(slots, ours.optimizer.variables, strict=True))
    assert fit_more(stock, steps) == fit_more(ours, steps)
    assert_same_state(stock, ours)
    np.testing.assert_array_equal(*(m.predict(IDS, verbose=0) for m in (stock, ours)))
    assert stock.evaluate(IDS, LABELS, verbose=0) == ours.evaluate(IDS, LABELS, verbose=0)


def test_what_was_traced_is_traced_anew():
    model = functional(STOCK)
    fit(model, "sgd")
    model.predict(IDS, verbose=0)
    model.evaluate(IDS, LABELS, verbose=0)
    before = model.train_function, model.test_function, model.predict_function
    accelerate(model)
    assert "ReadVariableOp" not in ops_of(model.layers[COLUMNS], tf.constant([1]))
    fit_more(model)
    model.predict(IDS, verbose=0)
    model.evaluate(IDS, LABELS, verbose=0)
    after = model.train_function, model.test_function, model.predict_function
    assert not set(before) & set(after)
    accelerate(model)
    assert (model.train_function, model.test_function, model.predict_function) == after


def test_a_second_call_changes_nothing():
    model = functional(STOCK)
    accelerate(model)
    report = accelerate(model)
    assert report.swapped_count == 0
    assert {layer.reason for layer in report.layers} == {"it is one of fusion's already"}
    assert accelerate(functional(OURS)).swapped_count == 0


def nested() -> Any:
    inner = functional(STOCK)
    inputs = [keras.Input(ids.shape[1:], dtype="int32") for ids in IDS]
    shared = STOCK(ROWS, DIM, name="shared")
    pooled = keras.layers.GlobalAveragePooling1D()
    rows = pooled(shared(inputs[0])) + pooled(shared(inputs[1]))
    return keras.Model(inputs, keras.layers.Dense(1)(rows) + inner(inputs))


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tables = [STOCK(ROWS, DIM), STOCK(ROWS, DIM)]
        self.by_name = {"third": STOCK(ROWS, DIM)}
        self.head = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])

    def call(self, ids: Any) -> Any:
        layers = [*self.tables, self.by_name["third"]]
        rows = [layer(one) for layer, one in zip(layers, ids, strict=True)]
        return self.head(keras.ops.concatenate(rows, 1))


def sequential() -> Any:
    layers = [keras.Input((4,), dtype="int32"), STOCK(ROWS, DIM), keras.layers.Flatten()]
    return keras.Sequential([*layers, keras.layers.Dense(1)])


@pytest.mark.parametrize(("build", "count"), [(nested, 4), (Subclassed, 3), (sequential, 1)])
def test_models_of_all_kinds(build, count):
    ids = IDS[2] if build is sequential else [tf.constant(one) for one in IDS]
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        models.append(build())
        models[-1].compile("adagrad", "mse")
        models[-1].fit(ids, LABELS, 16, verbose=0, shuffle=False)
    report = accelerate(models[1])
    assert report.swapped_count == count
    for model in models:
        model.fit(ids, LABELS, 16, 3, verbose=0, shuffle=False)
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(a, b)


def test_before_a_model_is_built_or_compiled():
    model = Subclassed()
    assert accelerate(model).swapped_count == 3
    fit(model, "sgd")
    assert {type(layer) for layer in model.tables} == {OURS}


class Doubled(keras.layers.Embedding):
    def call(self, inputs: Any) -> Any:
        return 2 * super().call(inputs)


def lora() -> Any:
    layer = STOCK(ROWS, DIM)
    layer.build()
    layer.enable_lora(2)
    return layer


def quantized() -> Any:
    layer = STOCK(ROWS, DIM)
    layer.build()
    layer.quantize("int8")
    return layer


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Doubled(ROWS, DIM), "Doubled, which may compute something else"),
        (lora, "LoRA adds a matrix to the whole table"),
        (quantized, "its table is quantized"),
        (lambda: STOCK(ROWS, DIM, embeddings_regularizer="l2"), "its regularizer reads"),
    ],
)
def test_layers_that_stay(build, reason):
    model = keras.Sequential([build(), keras.layers.Flatten(), keras.layers.Dense(1)])
    before = model(IDS[2])
    kind = type(model.layers[0])
    (layer,) = accelerate(model).layers
    assert not layer.swapped
    assert layer.reason is not None
    assert reason in layer.reason
    assert type(model.layers[0]) is kind
    np.testing.assert_array_equal(model(IDS[2]), before)


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (keras.optimizers.Adam(), "Adam changes the whole table"),
        (keras.optimizers.Ftrl(), "Ftrl changes the whole table"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.Ftrl()), "Ftrl changes the whole"),
        (keras.optimizers.SGD(0.1, 0.9), "SGD changes the whole table"),
        (keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "SGD changes the whole table"),
        (keras.optimizers.SGD(0.1), None),
        (keras.optimizers.SGD(0.1, weight_decay=0.1), None),
        (keras.optimizers.RMSprop(), None),
        (fusion.optimizers.LazyFtrl(), None),
        (fusion.optimizers.LazyAdam(weight_decay=0.1), None),
    ],
)
def test_optimizers_that_would_have_to_copy_tables(optimizer, reason):
    model = functional(STOCK)
    model.compile(optimizer, "mse")
    report = accelerate(model)
    if reason is None:
        assert report.swapped_count == COLUMNS
    else:
        assert report.swapped_count == 0
        assert all(layer.reason and reason in layer.reason for layer in report.layers)


def test_constraints_depend_on_the_optimizer():
    for optimizer, count in (("sgd", COLUMNS), ("adam", 0)):
        model = functional(STOCK, embeddings_constraint="non_neg")
        model.compile(optimizer, "mse")
        assert accelerate(model).swapped_count == count


def test_the_report():
    keras.utils.set_random_seed(1)
    items = STOCK(ROWS, DIM, name="items")
    tags = STOCK(ROWS, DIM, name="ta\ngs", embeddings_regularizer="l2")
    ids = keras.Input((1,), dtype="int32")
    report = accelerate(keras.Model(ids, [items(ids), tags(ids)]))
    assert str(report) == (
        "1 of 2 embedding layers swapped\n"
        "  swapped  items\n"
        "  stays    ta\\ngs: its regularizer reads the whole table"
    )
    plain = json.loads(json.dumps(report.to_dict()))
    assert (plain["swapped"], plain["total"]) == (1, 2)
    assert plain["layers"][0] == {"path": "items", "swapped": True, "reason": None}
    nothing = accelerate(keras.Sequential([keras.layers.Dense(1)]))
    assert str(nothing) == "0 of 0 embedding layers swapped"


def test_a_model_in_a_file(tmp_path: Path):
    model = functional(STOCK)
    fit(model, "adagrad")
    accelerate(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("table_0")) is OURS
    assert_same_state(model, loaded)
    model.save_weights(tmp_path / "a.weights.h5")
    stock = functional(STOCK)
    stock.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(stock(IDS), model(IDS))


@pytest.mark.parametrize(
    "model",
    [
        tf_keras.Sequential([tf_keras.layers.Embedding(3, 2)]),
        tf.Module(),
        "model",
    ],
)
def test_what_is_no_model_of_keras_3(model):
    with pytest.raises(TypeError, match="accelerate: model must be a model of Keras 3"):
        accelerate(model)


def test_another_backend_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(RuntimeError, match=r"accelerate needs .* got 'torch'"):
        accelerate(keras.Sequential())
