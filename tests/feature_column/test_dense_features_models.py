"""Keras 3 models with our `DenseFeatures`: training, saving, exporting, in this process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.feature_column import embedding_column
from fusion.feature_column.dense_features import DenseFeatures
from fusion.lookup import VERSIONS
from fusion.optimizers.keras3 import LazyAdam
from tests.feature_column.dense_layers import (
    assert_close,
    embedding,
    fc,
    identity,
    initializer,
    our_layer,
    sparse,
    stock_layer,
)
from tests.keras.releases import EXPORTS_TABLES
from tests.reference import assert_same_bits

Array = Any
PARITY = pytest.mark.parity

ROWS = 24
LABELS = np.random.default_rng(2).integers(0, 2, (ROWS, 1)).astype(np.float32)


def columns() -> list[Any]:
    words = fc.categorical_column_with_hash_bucket("word", 5)
    return [
        embedding(identity("id"), 3),
        embedding_column(words, 4, initializer=initializer, do_fusion="v1"),
        fc.numeric_column("number", 2),
        embedding_column(identity("several"), 2, "sum", initializer, do_fusion="v2"),
    ]


def arrays(rows: int = ROWS) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {
        "id": rng.integers(-1, 5, (rows, 1)),
        "word": rng.choice(np.array(["a", "c", "", "zebra"], object), (rows, 1)),
        "number": rng.normal(size=(rows, 2)).astype(np.float32),
        "several": rng.integers(-1, 10, (rows, 3)),
    }


def tensors() -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in arrays().items()}


def inputs() -> dict[str, Any]:
    return {
        "id": keras.Input((1,), dtype="int64", name="id"),
        "word": keras.Input((1,), dtype="string", name="word"),
        "number": keras.Input((2,), name="number"),
        "several": keras.Input((3,), dtype="int64", name="several"),
    }


def functional() -> Any:
    given = inputs()
    hidden = keras.layers.Dense(8, "relu")(DenseFeatures(columns())(given))
    return keras.Model(given, keras.layers.Dense(1, "sigmoid")(hidden))


def sequential() -> Any:
    return keras.Sequential([DenseFeatures(columns()), keras.layers.Dense(1, "sigmoid")])


@keras.saving.register_keras_serializable(package="fusion_tests")
class Subclassed(keras.Model):
    """A model that makes its layers itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.features = DenseFeatures(columns())
        self.last = keras.layers.Dense(1, "sigmoid")

    def call(self, given: Any) -> Any:
        return self.last(self.features(given))


STYLES = {"functional": functional, "sequential": sequential, "subclassed": Subclassed}


def trained(style: str) -> Any:
    keras.utils.set_random_seed(3)
    model = STYLES[style]()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(tensors(), LABELS, epochs=2, batch_size=8, verbose=0)
    return model


def layer_of(model: Any) -> Any:
    (layer,) = (layer for layer in model.layers if isinstance(layer, DenseFeatures))
    return layer


def names(model: Any) -> list[str]:
    """`<column>/<variable>` of the layer's variables."""
    return [
        variable.path.split("/", variable.path.count("/") - 1)[-1]
        for variable in layer_of(model).weights
    ]


@PARITY("Keras 3 DenseFeatures in a {style} model", *VERSIONS)
@PARITY("Keras 3 models saved and loaded", *VERSIONS)
@pytest.mark.parametrize("style", STYLES)
def test_models_train_and_are_saved(style: str, tmp_path: Path) -> None:
    model = trained(style)
    for variable in layer_of(model).trainable_weights:
        start = initializer(variable.shape).numpy()
        moved = (variable.numpy() != start).any(axis=1)
        assert moved.any()
        if "several" not in variable.path:  # Adam moves rows that have been in a batch, or all
            assert_same_bits(variable.numpy()[~moved], start[~moved])
    predicted = model.predict(tensors(), verbose=0)
    assert_close(predicted, model(tensors()).numpy())
    loss, accuracy = model.evaluate(tensors(), LABELS, verbose=0)
    assert np.float32(accuracy) == ((predicted > 0.5) == LABELS).mean(dtype=np.float32)
    assert np.isfinite(loss)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same_bits(loaded.predict(tensors(), verbose=0), predicted)
    assert names(loaded) == names(model)
    for again in (model, loaded):
        keras.utils.set_random_seed(4)
        again.fit(tensors(), LABELS, batch_size=8, verbose=0)
    assert_same_bits(loaded(tensors()).numpy(), model(tensors()).numpy())

    model.save_weights(tmp_path / "model.weights.h5")
    fresh = STYLES[style]()
    fresh(tensors())
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same_bits(fresh(tensors()).numpy(), model(tensors()).numpy())


@PARITY("Keras 3 models exported", *VERSIONS)
@pytest.mark.parametrize("style", STYLES)
def test_models_are_exported(style: str, tmp_path: Path) -> None:
    model = STYLES[style]()
    predicted = model.predict(tensors(), verbose=0)
    if style != "functional":
        # Keras exports other models as if all inputs were float32, or not at all.
        given = inputs()
        model = keras.Model(given, model.call(given))
    model.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert_same_bits(served(**tensors())["output_0"].numpy(), predicted)


@PARITY("Keras 3 DenseFeatures", "pass")
@PARITY("Keras 3 models exported", "pass")
def test_exported_models_of_stock_columns_are_rewritten(tmp_path: Path) -> None:
    given = {name: each for name, each in inputs().items() if name in ("several", "number")}
    made = [embedding(identity("several"), 3), fc.numeric_column("number", 2)]
    model = keras.Model(given, keras.layers.Dense(1)(DenseFeatures(made)(given)))
    model.export(tmp_path / "stock", verbose=False)
    report = fusion.fuse_saved_model(tmp_path / "stock", tmp_path / "fused")
    assert report.fused_count > 0
    assert all(column.reason is None for column in report.columns)
    batch = {name: tensors()[name] for name in given}
    served = tf.saved_model.load(str(tmp_path / "fused")).signatures["serving_default"]
    assert_same_bits(served(**batch)["output_0"].numpy(), model(batch).numpy())


def with_vocabularies(file: Path) -> Any:
    """A model of columns that look words up."""
    by_file, by_list = (
        fc.categorical_column_with_vocabulary_file,
        fc.categorical_column_with_vocabulary_list,
    )
    made = [
        fc.indicator_column(by_file("a", str(file))),
        embedding(by_file("b", str(file), num_oov_buckets=2)),
        fc.indicator_column(by_list("c", ["x", "y"])),
        embedding(by_list("d", ["x", "y"], num_oov_buckets=2)),
    ]
    given = {name: keras.Input((1,), dtype="string", name=name) for name in "abcd"}
    return keras.Model(given, DenseFeatures(made)(given))


@pytest.mark.parametrize("writer", ["export", "save"])
def test_vocabularies_go_into_saved_models(writer: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("x\nyy\nz\n")
    model = with_vocabularies(tmp_path / "words")
    batch = {name: tf.constant([["x"], ["yy"], [""], ["other"]]) for name in "abcd"}
    expected = model(batch)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same_bits(loaded(batch).numpy(), expected.numpy())
    target = str(tmp_path / "model")
    if writer == "export" and not EXPORTS_TABLES:
        with pytest.raises(AssertionError, match="untracked"):
            model.export(target)
        return
    if writer == "export":
        model.export(target, verbose=False)
    else:
        spec = {name: tf.TensorSpec([None, 1], tf.string, name) for name in "abcd"}
        serve = tf.function(lambda **given: {"output_0": model(given)})
        tf.saved_model.save(model, target, signatures=serve.get_concrete_function(**spec))
    (tmp_path / "words").unlink()
    served = tf.saved_model.load(target).signatures["serving_default"]
    assert_same_bits(served(**batch)["output_0"].numpy(), expected.numpy())


def test_gradients_reach_the_optimizer_as_slices() -> None:
    model = functional()
    seen: dict[str, Any] = {}

    class Watching(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            for gradient, variable in zip(grads, trainable_variables, strict=True):
                seen[variable.path] = gradient
            return super().apply(grads, trainable_variables)

    model.compile(Watching(0.5), "mse")
    model.fit(tensors(), LABELS, batch_size=8, verbose=0)
    tables = [path for path in seen if path.endswith("embedding_weights")]
    assert len(tables) == 3
    assert all(isinstance(seen[path], tf.IndexedSlices) for path in tables)


@PARITY("Keras 3 models trained", *VERSIONS)
@pytest.mark.parametrize(
    ("optimizer", "do_fusion"),
    [("SGD", None), ("SGD", "v1"), ("Adagrad", "v2"), ("Adam", "v1"), ("Adam", "v2")],
)
def test_training_gives_the_numbers_of_stock_columns_in_tf_keras(
    optimizer: str, do_fusion: str | None
) -> None:
    made = [embedding(identity("id"), 3), embedding(identity("several"), 2)]
    batch = {name: tensors()[name] for name in ("id", "several")}
    results = []
    ours = our_layer(made, do_fusion=do_fusion)
    for package, layer in ((keras, ours), (tf_keras, stock_layer(made))):
        last = package.layers.Dense(1, kernel_initializer="ones")
        model = package.Sequential([layer, last])
        options = {} if optimizer == "SGD" else {"epsilon": 1e-3}
        kind = getattr(package.optimizers, optimizer)
        model.compile(kind(learning_rate=0.1, **options), "mse")
        model.fit(batch, LABELS, epochs=3, batch_size=8, shuffle=False, verbose=0)
        results.append([variable.numpy() for variable in layer.trainable_weights])
    for own, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=2e-4, atol=2e-5)


def test_a_lazy_optimizer_leaves_other_rows_alone() -> None:
    model = keras.Sequential([our_layer([embedding(identity("id"))]), keras.layers.Dense(1)])
    model.compile(LazyAdam(0.1), "mse")
    for ids in ([[1], [2]], [[2], [5]], [[5], [7]]):
        before = model.layers[0].weights[0].numpy() if model.built else initializer((10, 4)).numpy()
        model.fit({"id": tf.constant(ids)}, np.ones((2, 1)), verbose=0)
        moved = (model.layers[0].weights[0].numpy() != before).any(axis=1)
        assert np.flatnonzero(moved).tolist() == [row for (row,) in ids]


def test_sparse_ragged_and_list_features_train() -> None:
    made = [embedding(identity(name)) for name in ("sparse", "ragged", "list")]
    model = keras.Sequential(
        [DenseFeatures([*made, fc.numeric_column("x")]), keras.layers.Dense(1)]
    )
    batch = {
        "sparse": sparse(np.array([1, 4, 0, 4, -1, 9])),
        "ragged": tf.RaggedTensor.from_row_lengths([1, 4, 0, 4, -1, 9], [2, 1, 0, 2, 0, 1]),
        "list__values": tf.constant([[1], [4], [0], [4], [-1], [9]]),
        "list__offsets": tf.constant([[0], [2], [3], [3], [5], [5]]),
        "x": tf.ones([6, 1]),
    }
    data = tf.data.Dataset.from_tensors((batch, tf.ones([6, 1]))).repeat(3)
    model.compile("sgd", "mse")
    model.fit(data, verbose=0)
    assert model.predict(data.take(1), verbose=0).shape == (6, 1)
    start = initializer((10, 4)).numpy()
    for table in model.layers[0].weights:
        moved = (table.numpy() != start).any(axis=1)
        assert moved.tolist() == [k in (0, 1, 4, 9) for k in range(10)]


def checkpoint(path: Path, table: Array) -> str:
    """A checkpoint of TensorFlow 1 with one table."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saved = tf.compat.v1.get_variable("old/name", initializer=table)
        session.run(saved.initializer)
        return str(tf.compat.v1.train.Saver([saved]).save(session, str(path / "old")))


@pytest.mark.parametrize("do_fusion", [None, "v2"])
def test_tables_from_checkpoints(do_fusion: str | None, tmp_path: Path) -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    old = tmp_path / "old"
    old.mkdir()
    path = checkpoint(old, table)
    made = [
        embedding_column(
            identity(name),
            4,
            ckpt_to_load_from=path,
            tensor_name_in_ckpt="old/name",
            do_fusion=do_fusion,
        )
        for name in "ab"
    ]
    model = keras.Sequential([our_layer(made), keras.layers.Dense(1, use_bias=False)])
    batch = {"a": tf.constant([[1], [2]]), "b": tf.constant([[3, 3], [4, 5]])}
    assert_same_bits(model.layers[0](batch).numpy()[:, :4], table[1:3])
    model.compile("sgd", "mse")
    model.fit(batch, np.ones((2, 1)), epochs=2, verbose=0)
    after = model(batch).numpy()
    (first, _) = model.layers[0].weights
    assert (first.numpy()[1:3] != table[1:3]).all()  # read once, not before every step
    model.save(tmp_path / "model.keras")
    shutil.rmtree(old)
    assert_same_bits(keras.models.load_model(tmp_path / "model.keras")(batch).numpy(), after)
    again = our_layer(made)
    with pytest.raises(Exception, match="old"):
        again(batch)


def test_a_checkpoint_of_another_shape(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, np.zeros((9, 4), np.float32))
    column = fc.embedding_column(
        identity("a"), 4, ckpt_to_load_from=path, tensor_name_in_ckpt="old/name"
    )
    with pytest.raises(ValueError, match=r"'old/name' .* \(10, 4\), got \(9, 4\)"):
        our_layer([column])({"a": tf.constant([1])})


def test_checkpoints_of_tf_kerass_layer_can_be_read(tmp_path: Path) -> None:
    made = [embedding(identity("id"), 3), embedding(identity("several"), 2)]
    stock, ours = stock_layer(made), our_layer(made)
    stock(tensors())
    for variable in stock.weights:
        variable.assign_add(tf.ones_like(variable))
    path = tf.train.Checkpoint(features=stock).write(str(tmp_path / "stock"))
    ours(tensors())
    tf.train.Checkpoint(features=ours).read(path).assert_consumed()
    assert_same_bits(ours(tensors()).numpy(), stock(tensors()).numpy())


def test_clones() -> None:
    model = functional()
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same_bits(clone(tensors()).numpy(), model(tensors()).numpy())


def test_mixed_precision_leaves_the_layer_alone() -> None:
    layer = our_layer(columns(), dtype="mixed_float16")
    assert layer(inputs()).dtype == "float32"
    assert_same_bits(layer(tensors()).numpy(), our_layer(columns())(tensors()).numpy())
    assert {variable.dtype for variable in layer.weights} == {"float32"}


def test_xla_is_refused() -> None:
    layer = our_layer(columns())
    layer(tensors())
    with pytest.raises(ValueError, match=r"'inputs' cannot be compiled by XLA.*jit_compile"):
        tf.function(layer, jit_compile=True)(tensors())


def test_keras_does_not_use_xla() -> None:
    model = functional()
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile
    model.fit(tensors(), LABELS, verbose=0)


def test_a_layer_can_be_called_twice() -> None:
    layer = our_layer([embedding(identity("id"))])
    one, two = layer({"id": tf.constant([1, 2])}), layer({"id": tf.constant([[2], [1]])})
    assert_same_bits(one.numpy(), two.numpy()[::-1])
    assert len(layer.weights) == 1
