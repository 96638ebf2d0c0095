"""Models of tf_keras with columns of embedding variables, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert len(names) == {"Adagrad": 1}.get(optimizer, 2) * (partitions or 1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_is_restored_before_the_optimizer_is_built(tmp_path: Path, optimizer):
    first, second = model(optimizer), model(optimizer, capacity=60)
    losses(first)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{tmp_path}/save")
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    for keys in (KEYS, KEYS[::-1] + 1, KEYS):
        assert losses(first, keys) == losses(second, keys)
