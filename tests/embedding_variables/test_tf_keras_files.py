"""Models of tf_keras with columns of embedding variables, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.optimizers.tf_keras import Adagrad, LazyAdam

KEYS = np.array([[1, 2, 3], [2, 50, 60], [7, 8, 1]]) * 10**9
OPTIMIZERS = {"Adagrad": Adagrad, "LazyAdam": LazyAdam, "Adam": tf_keras.optimizers.Adam}


def model(optimizer: str = "LazyAdam", partitions: int | None = None, capacity: int = 50) -> Any:
    tf_keras.utils.set_random_seed(1)
    option = fusion.tables.EmbeddingVariableOption(capacity=capacity, seed=4)
    column = fusion.feature_column.categorical_column_with_embedding(
        "a", tf.int64, partitions, option
    )
    embedding = fusion.feature_column.embedding_column(column, 4, do_fusion="v2")
    inputs = {"a": tf_keras.Input([3], dtype="int64", name="a")}
    outputs = tf_keras.layers.DenseFeatures([embedding])(inputs)
    made = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(outputs))
    made.compile(OPTIMIZERS[optimizer](0.1), "mse")
    return made


def losses(made: Any, keys: Any = KEYS, count: int = 3) -> list[float]:
    labels = np.ones([len(keys), 1])
    return [float(made.train_on_batch({"a": keys}, labels)) for _ in range(count)]


@pytest.mark.parametrize("partitions", [None, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_saved_model_goes_on_with_a_new_optimizer(tmp_path: Path, optimizer, partitions):
    """As those of stock tables do."""
    first, fresh = (model(optimizer, partitions) for _ in range(2))
    losses(first)
    first.save(tmp_path / "model")
    second = tf_keras.models.load_model(tmp_path / "model")
    path = tf.train.Checkpoint(layers=first.layers).write(str(tmp_path / "save"))
    tf.train.Checkpoint(layers=fresh.layers).read(path).assert_consumed()
    asked = {"a": np.concatenate([KEYS, KEYS + 1])}
    assert (second.predict(asked) == first.predict(asked)).all()
    assert losses(second) == losses(fresh) != losses(first)
    # What is written after the model has the slots.
    path = tf.train.Checkpoint(optimizer=first.optimizer).write(str(tmp_path / "slots"))
    names = [name for name, _ in tf.train.list_variables(path) if name.endswith("/values")]
    assert len(names) == {"Adagrad": 1}.get(optimizer, 2)  # one for all partitions


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_is_restored_before_the_optimizer_is_built(tmp_path: Path, optimizer):
    first, second = model(optimizer), model(optimizer, capacity=60)
    losses(first)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{tmp_path}/save")
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    for keys in (KEYS, KEYS[::-1] + 1, KEYS):
        assert losses(first, keys) == losses(second, keys)


@pytest.mark.parametrize("file", ["model.keras", "some.weights.h5"])
@pytest.mark.parametrize(
    ("optimizer", "partitions"), [*((name, None) for name in OPTIMIZERS), ("LazyAdam", 2)]
)
def test_files_have_keys(tmp_path: Path, optimizer, partitions, file):
    first, second = model(optimizer, partitions), model(optimizer, partitions, capacity=60)
    losses(first)
    losses(second, KEYS[::-1] + 1)  # other keys, whose rows are those
    path = tmp_path / file
    if file == "model.keras":
        first.save(path)
        scope = {"TruncatedNormal": tf.compat.v1.truncated_normal_initializer}
        second = tf_keras.models.load_model(path, custom_objects=scope)
    else:
        first.save_weights(path)
        second.load_weights(path)
    asked = {"a": np.concatenate([KEYS, KEYS + 1])}
    assert (second.predict(asked) == first.predict(asked)).all()
    for keys in (KEYS, KEYS[::-1] + 1, KEYS):
        assert losses(first, keys) == losses(second, keys)


class _Lookup(tf_keras.layers.Layer):
    """A layer whose attributes hold tables: itself, in a list and in a module."""

    def __init__(self, capacity: int = 50, **options: Any) -> None:
        super().__init__(**options)
        # Trained and saved by tf_keras itself.
        self.scale = self.add_weight("scale", initializer="ones")
        parts = fusion.tables.PartitionedEmbeddingVariable("parts", 4, 2, capacity=capacity, seed=1)
        self.table = fusion.EmbeddingVariable("table", 4, capacity=capacity, seed=2)
        self.tables = [parts]
        self.module = tf.Module()
        self.module.table = fusion.EmbeddingVariable("inner", 4, capacity=capacity, seed=3)
        self.module.plain = tf.Variable(1.0, trainable=False)

    def call(self, keys: Any) -> Any:
        ids = tf.sparse.from_dense(keys)
        tables = (self.table, self.module.table, *self.tables)
        return self.scale * tf.concat(
            [fusion.fused_embedding_lookup_sparse_v2(one, ids, combiner="sum") for one in tables], 1
        )


@pytest.mark.parametrize("file", ["model.keras", "some.weights.h5"])
def test_tables_of_attributes_are_in_files(tmp_path: Path, file):
    """tf_keras trains them, so that its files have them."""

    def made(capacity: int) -> Any:
        tf_keras.utils.set_random_seed(1)
        found = tf_keras.Sequential([_Lookup(capacity), tf_keras.layers.Dense(1)])
        found.compile(LazyAdam(0.1), "mse")
        found(KEYS)
        return found

    first, second = made(50), made(60)
    first.fit(KEYS, np.ones([len(KEYS), 1]), epochs=2, verbose=0)
    asked = np.concatenate([KEYS, KEYS + 1])
    assert (second(asked) != first(asked)).numpy().any()
    if file == "model.keras":
        first.save(tmp_path / file)
        second = tf_keras.models.load_model(tmp_path / file, custom_objects={"_Lookup": _Lookup})
    else:
        first.save_weights(tmp_path / file)
        second.load_weights(tmp_path / file)
    assert (second(asked) == first(asked)).numpy().all()
    lookup = second.layers[0]
    for table in (lookup.table, lookup.module.table):
        assert table.statistics().keys == len(np.unique(KEYS))


def test_the_old_hdf5_format_is_refused(tmp_path: Path):
    keyed = fusion.keras.layers.DynamicEmbedding(2)
    of_keras3 = keras.Sequential([keras.Input([], dtype="int64"), keyed])
    for made, plain in ((model(), tf_keras), (of_keras3, keras)):
        with pytest.raises(NotImplementedError, match=r"old HDF5 format cannot have: use \.keras"):
            made.save(tmp_path / "model.h5")
        other = plain.Sequential([plain.layers.Dense(1)])
        other(np.zeros([1, 2], np.float32))
        other.save_weights(tmp_path / "plain.weights.h5")
        other.save(tmp_path / "plain.h5")
        with pytest.raises(NotImplementedError, match="old HDF5 format"):
            made.load_weights(tmp_path / "plain.h5")
    with pytest.raises(NotImplementedError, match="old HDF5 format"):
        model().save_weights(tmp_path / "some.h5")
