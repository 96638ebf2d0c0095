"""Models whose columns without a bound share a table, saved and loaded."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion import feature_column as fc
from fusion.optimizers import keras3 as ours
from tests.embedding_variables.plain import loss_of_step
from tests.feature_column.keyed_models import BATCH
from tests.feature_column.test_keyed_shared_layers import (
    FUSION,
    NAMES,
    columns_of,
    dense,
    keyed,
)


def model(do_fusion, count):
    inputs = {name: keras.Input([3], dtype="int64", name=name) for name in NAMES}
    columns = columns_of(lambda name: keyed(name, count=count), do_fusion)
    head = keras.layers.Dense(1, "tanh", kernel_initializer="ones")
    made = keras.Model(inputs, head(fc.DenseFeatures(columns)(inputs)))
    made.compile(ours.LazyAdam(0.1), "mse")
    return made


def losses(made, steps):
    labels = np.resize([1.0, -1.0, 0.5], [BATCH, 1])
    return [loss_of_step(made, dense(step), labels) for step in steps]


@pytest.mark.parametrize("count", [None, 2])
@FUSION
def test_a_checkpoint_has_the_table_once(do_fusion, count, tmp_path):
    first, second = model(do_fusion, count), model(do_fusion, count)
    losses(first, range(2))
    assert len(first.weights) == (count or 1) + 2
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{tmp_path}/save")
    names = [name for name, _ in tf.train.list_variables(path)]
    assert len([name for name in names if name.endswith("/counts")]) == 1
    second.optimizer.build(second.trainable_variables)
    losses(second, range(8, 9))  # other rows, which are gone then
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    assert losses(second, range(2, 4)) == losses(first, range(2, 4))


@pytest.mark.parametrize("count", [None, 2])
@FUSION
def test_a_loaded_model_goes_on_as_it_would_have(do_fusion, count, tmp_path):
    first = model(do_fusion, count)
    losses(first, range(2))
    first.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert losses(loaded, range(2, 4)) == losses(first, range(2, 4))
    assert len(loaded.weights) == len(first.weights)
    (layer,) = (x for x in loaded.layers if isinstance(x, fc.DenseFeatures))
    columns = layer._columns.all
    assert {column.do_fusion for column in columns} == {do_fusion}
    assert len({column.shared_embedding_column_creator for column in columns}) == 1


@FUSION
def test_weights_go_into_a_table_without_partitions(do_fusion, tmp_path):
    first, second = model(do_fusion, 2), model(do_fusion, None)
    losses(first, range(2))
    store: dict[str, Any] = {}
    first.layers[len(NAMES)].save_own_variables(store)
    second.layers[len(NAMES)].load_own_variables(store)
    given = [made.layers[len(NAMES)](dense(0)).numpy() for made in (first, second)]
    np.testing.assert_array_equal(*given)
    assert {number.partition("_")[0] for number in store} == {"0"}
