"""Functions of Keras that embedding variables replace: others see no difference."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tf_keras
from keras.src.legacy.saving import legacy_h5_format

from fusion.tables.keras_slots import make_keras_slots_follow

GRADIENT = [1.0, 2.0]


@pytest.fixture(autouse=True, scope="module")
def replaced():
    make_keras_slots_follow()


@pytest.mark.parametrize(
    "name", ["Adam", "Adagrad", "Adafactor", "Ftrl", "LossScaleOptimizer", "SGD"]
)
def test_build_of_keras_3_by_the_name_of_its_argument(name):
    kind = getattr(keras.optimizers, name)
    inner = (keras.optimizers.SGD(),) if name == "LossScaleOptimizer" else ()
    optimizer = kind(*inner)
    (argument,) = inspect.signature(optimizer.build).parameters
    optimizer.build(**{argument: [keras.Variable([1.0, 2.0])]})
    assert optimizer.built


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Adafactor", "Ftrl", "SGD"])
def test_build_of_tf_keras_by_the_name_of_its_argument(name):
    optimizer = getattr(tf_keras.optimizers, name)()
    optimizer.build(var_list=[tf.Variable([1.0, 2.0])])
    assert optimizer._built


@pytest.mark.parametrize("inner", [tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD])
def test_a_step_of_tf_keras_by_the_name_of_its_argument(inner):
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(inner(1.0))
    variable = tf.Variable([3.0, 3.0])
    optimizer.apply_gradients(grads_and_vars=[(tf.constant(GRADIENT), variable)])
    assert variable.numpy().tolist() == [2.0, 1.0]


def test_gradients_of_legacy_optimizers_by_the_name_of_their_argument():
    optimizer, variable = tf_keras.optimizers.legacy.SGD(), tf.Variable([3.0, 3.0])
    pairs = [(tf.constant(GRADIENT), variable)]
    ((gradient, _),) = optimizer._aggregate_gradients(grads_and_vars=pairs)
    assert gradient.numpy().tolist() == GRADIENT


def test_the_old_format_by_the_names_of_its_arguments(tmp_path: Path):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    file = tmp_path / "model.h5"
    legacy_h5_format.save_model_to_hdf5(filepath=file, model=model)
    loaded = legacy_h5_format.load_model_from_hdf5(file)
    assert loaded.count_params() == model.count_params()


def test_too_many_arguments_are_refused_as_before():
    with pytest.raises(TypeError):
        keras.optimizers.Adagrad().build([], [])
