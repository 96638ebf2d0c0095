"""Callbacks, weights and copies of models with embedding variables, in Keras 3 and tf_keras.

The table has 2**40 bytes: what reads it whole fails on any machine.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.keras import tf_keras as layers_of_tf_keras
from fusion.keras.layers import AllToAllDenseEmbedding, DynamicEmbedding
from fusion.optimizers import keras3
from fusion.optimizers import tf_keras as ours_of_tf_keras
from fusion.tables import EmbeddingVariableOption, KeyedRows, LeastRecent

CAPACITY, DIM = 2**30, 256
KEYS = np.arange(4)[:, None]
LABELS = np.ones((4, 1), np.float32)
KERASES: dict[str, tuple[Any, Any, Any]] = {
    "keras3": (keras, AllToAllDenseEmbedding, keras3.LazyAdam),
    "tf_keras": (tf_keras, layers_of_tf_keras.AllToAllDenseEmbedding, ours_of_tf_keras.LazyAdam),
}


def new_model(family: str, capacity: int = CAPACITY, dimension: int = DIM) -> Any:
    package, layer, optimizer = KERASES[family]
    rows = layer(
        None,
        dimension,
        dynamic_input=True,
        embeddings_initializer="ones",
        ev_option=EmbeddingVariableOption(capacity=capacity),
        name="rows",
    )
    model = package.Sequential(
        [package.Input([1], dtype="int64"), rows, package.layers.Flatten(), package.layers.Dense(1)]
    )
    model.compile(optimizer(0.1), "mse")
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 2) -> Any:
    model._training_state = None  # which BackupAndRestore of tf_keras has taken away
    return model.fit(KEYS, LABELS, verbose=0, epochs=epochs, callbacks=list(callbacks))


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """One of each Keras, trained."""
    found = {family: new_model(family) for family in KERASES}
    for model in found.values():
        fit(model)
    return found


def variable_of(model: Any) -> Any:
    return model.get_layer("rows").table


def rows_of(model: Any) -> Any:
    return variable_of(model).embedding_lookup(KEYS[:, 0]).numpy()


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


#: Callbacks of both Kerases, made of the package and a folder, and whether they leave files there.
CALLBACKS: dict[str, tuple[Callable[[Any, str], Any], bool]] = {
    "EarlyStopping": (
        lambda package, _: package.callbacks.EarlyStopping("loss", restore_best_weights=True),
        False,
    ),
    ".keras": (lambda package, d: package.callbacks.ModelCheckpoint(f"{d}/m.keras"), True),
    ".weights.h5": (
        lambda package, d: package.callbacks.ModelCheckpoint(
            f"{d}/m.weights.h5", "loss", save_weights_only=True, save_best_only=True
        ),
        True,
    ),
    "BackupAndRestore": (
        lambda package, d: package.callbacks.BackupAndRestore(f"{d}/backup"),
        False,  # it takes them away
    ),
    "TensorBoard": (
        lambda package, d: package.callbacks.TensorBoard(
            d, histogram_freq=1, write_images=True, embeddings_freq=1
        ),
        True,
    ),
    "ReduceLROnPlateau": (
        lambda package, _: package.callbacks.ReduceLROnPlateau("loss", patience=0),
        False,
    ),
    "TerminateOnNaN": (lambda package, _: package.callbacks.TerminateOnNaN(), False),
    "CSVLogger": (lambda package, d: package.callbacks.CSVLogger(f"{d}/log"), True),
    "LearningRateScheduler": (
        lambda package, _: package.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
        False,
    ),
    "LambdaCallback": (
        lambda package, _: package.callbacks.LambdaCallback(on_epoch_end=lambda *_: None),
        False,
    ),
    "ProgbarLogger": (lambda package, _: package.callbacks.ProgbarLogger(), False),
}

OF_TF_KERAS: dict[str, Callable[[str], Any]] = {
    "SavedModel": lambda d: tf_keras.callbacks.ModelCheckpoint(f"{d}/m"),
    "checkpoint": lambda d: tf_keras.callbacks.ModelCheckpoint(f"{d}/w", save_weights_only=True),
}


@pytest.mark.parametrize("family", KERASES)
@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks(tmp_path: Path, models, family, name):
    make, writes = CALLBACKS[name]
    fit(models[family], make(KERASES[family][0], str(tmp_path)))
    size = size_of(tmp_path)
    assert (size > 0) == writes
    assert size < 1 << 20


@pytest.mark.parametrize("name", OF_TF_KERAS)
def test_model_checkpoints_of_tf_keras(tmp_path: Path, models, name):
    fit(models["tf_keras"], OF_TF_KERAS[name](str(tmp_path)), epochs=1)
    assert 0 < size_of(tmp_path) < 1 << 20


@pytest.mark.parametrize("family", KERASES)
def test_the_old_format_is_refused(tmp_path: Path, models, family):
    checkpoint = KERASES[family][0].callbacks.ModelCheckpoint(f"{tmp_path}/model.h5")
    with pytest.raises(NotImplementedError, match="the old HDF5 format cannot have"):
        fit(models[family], checkpoint)


def test_ema_is_refused():
    layer = DynamicEmbedding(DIM, ev_option=EmbeddingVariableOption(capacity=CAPACITY))
    layer.build()
    with pytest.raises(ValueError, match="would take memory for all 1073741824 rows"):
        keras.optimizers.SGD(use_ema=True).build(layer.trainable_variables)
    with pytest.raises(ValueError, match="does not support use_ema"):
        keras3.LazyAdam(use_ema=True)


@pytest.mark.parametrize("family", KERASES)
def test_tensorboard_shows_the_rows_of_keys(tmp_path: Path, models, family):
    """Not those of other rows, which are zeros."""
    model = models[family]
    fit(model, KERASES[family][0].callbacks.TensorBoard(str(tmp_path), histogram_freq=1), epochs=1)
    found = [
        tf.make_ndarray(value.tensor)
        for file in tmp_path.rglob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
        if "embeddings" in value.tag and "histogram" in value.tag
    ]
    (histogram,) = found
    assert histogram[:, 2].sum() == KEYS.size * DIM


@pytest.mark.parametrize("family", KERASES)
def test_the_best_weights_are_restored(models, family):
    package, model = KERASES[family][0], models[family]
    seen: list[Any] = []

    def note(epoch: int, logs: Any) -> None:
        logs["worse"] = [2.0, 1.0, 3.0, 3.0][epoch]
        seen.append((rows_of(model), model.layers[-1].get_weights()))
        with tf.GradientTape():  # one more key in each epoch
            variable_of(model).embedding_lookup(tf.constant([100 + epoch], tf.int64))

    fit(
        model,
        package.callbacks.LambdaCallback(on_epoch_end=note),
        package.callbacks.EarlyStopping("worse", patience=2, mode="min", restore_best_weights=True),
        epochs=4,
    )
    assert len(seen) == 4
    rows, others = seen[1]
    assert (rows_of(model) == rows).all()
    assert (seen[3][0] != rows).any()
    for expected, found in zip(others, model.layers[-1].get_weights(), strict=True):
        assert (found == expected).all()
    assert {100, 101, 102, 103} & set(model.get_weights()[0].keys.tolist()) == {100, 101}


@pytest.mark.parametrize("family", KERASES)
def test_weights_are_keys_and_rows(models, family):
    model = models[family]
    rows, kernel, bias = model.get_weights()
    assert isinstance(rows, KeyedRows)
    assert (kernel.shape, bias.shape) == ((DIM, 1), (1,))
    assert rows.shape == (len(rows.keys), DIM)
    assert rows.nbytes < 1 << 16
    assert repr(rows) == f"<KeyedRows of {len(rows.keys)} keys: {len(rows.keys)} rows of 256>"
    order = np.argsort(rows.keys)[:4]
    assert (rows.values[order] == rows_of(model)).all()
    other = new_model(family, capacity=50)  # and of other keys
    with tf.GradientTape():
        variable_of(other).embedding_lookup(tf.constant([5000], tf.int64))
    other.set_weights(pickle.loads(pickle.dumps([rows, kernel, bias])))
    assert (other.predict(KEYS, verbose=0) == model.predict(KEYS, verbose=0)).all()
    assert variable_of(other).statistics().keys == len(rows.keys)
    layer = other.get_layer("rows")
    layer.set_weights(layer.get_weights())
    assert (rows_of(other) == rows_of(model)).all()


@pytest.mark.parametrize("family", KERASES)
def test_wrong_weights_change_nothing(models, family):
    model = models[family]
    rows, kernel, bias = model.get_weights()
    before = rows_of(model)
    narrow = KeyedRows(rows.keys, rows.counts, rows.steps, rows.values[:, :4], rows.initial[:, :4])
    for weights, match in (
        ([rows, kernel], "has 3 weights, but weights are 2"),
        ([np.zeros((4, DIM)), kernel, bias], "must have the KeyedRows of get_weights"),
        ([narrow, kernel, bias], "has rows of 256 numbers"),
        ([rows, rows, bias], "is no table of keys"),
    ):
        with pytest.raises(ValueError, match=match):
            model.set_weights(weights)
    assert (rows_of(model) == before).all()


@pytest.mark.parametrize("family", KERASES)
def test_weights_of_other_layers_are_arrays(family):
    package = KERASES[family][0]
    dense = package.layers.Dense(2)
    dense.build([None, 3])
    dense.set_weights([np.ones((3, 2)), np.ones(2)])
    assert [type(array) for array in dense.get_weights()] == [np.ndarray] * 2
    with pytest.raises(ValueError, match="of length 1"):
        dense.set_weights([np.ones((3, 2))])


def test_reading_weights_evicts_nothing():
    option = EmbeddingVariableOption(capacity=50, evict_option=LeastRecent(1))
    layer = DynamicEmbedding(2, ev_option=option)
    layer.build()
    with tf.GradientTape():
        layer.embedding_variable.embedding_lookup(KEYS)
    assert sorted(layer.get_weights()[0].keys.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("family", KERASES)
def test_what_shows_a_model(models, family):
    model = models[family]
    keys = variable_of(model).statistics().keys
    shown = f"{keys} keys, {keys} rows, {keys * (20 + 4 * DIM):,} bytes"
    assert shown in str(model.weights)
    lines: list[str] = []
    model.summary(print_fn=lambda *line, **_: lines.append(str(line)))
    assert lines
    assert model.count_params() == CAPACITY * DIM + DIM + 1
    assert "numpy=" not in str([slot for slot in variable_of(model).slots if slot is not None])


@pytest.mark.parametrize("family", KERASES)
def test_copies_of_a_model(models, family):
    package, model = KERASES[family][0], models[family]
    expected = model.predict(KEYS, verbose=0)
    cloned = package.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), cloned):
        assert (other.predict(KEYS, verbose=0) == expected).all()


def test_state_trees_are_refused(models):
    with pytest.raises(NotImplementedError, match="which arrays of variables cannot have"):
        models["keras3"].get_state_tree()


def test_a_regularizer_is_an_error():
    model = new_model("keras3")
    model.weights[0].regularizer = keras.regularizers.L2(0.1)
    with pytest.raises(ValueError, match=r"whole would take 1,024\.0 GiB"):
        fit(model)


def test_a_loss_of_the_table_is_an_error():
    model = new_model("tf_keras")
    table = variable_of(model).table
    model.add_loss(lambda: tf.nn.l2_loss(table))
    with pytest.raises(ValueError, match=r"whole would take 1,024\.0 GiB"):
        fit(model)
