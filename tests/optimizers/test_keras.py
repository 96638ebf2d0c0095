"""The row-sparse Adam in Keras: arguments it refuses, models, files and wrappers."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.optimizers import runs
from tests.optimizers.runs import BATCHES, KERNEL, OPTIMIZERS, RATE, TABLE

PACKAGES = {"keras3": keras, "tf_keras": tf_keras}
REFUSED = [
    ("keras3", {"use_ema": True}),
    ("keras3", {"gradient_accumulation_steps": 2}),
    ("keras3", {"loss_scale_factor": 2.0}),
    ("tf_keras", {"use_ema": True}),
]


@pytest.mark.parametrize(("family", "arguments"), REFUSED)
def test_arguments_that_cannot_be_right_are_refused(family, arguments):
    ((name, value),) = arguments.items()
    lazy, stock = OPTIMIZERS[family]
    with pytest.raises(ValueError, match=f"LazyAdam does not support {name}, got {value}: "):
        lazy(**arguments)
    stock(**arguments)
    lazy(**dict.fromkeys(arguments))


@pytest.mark.parametrize("family", PACKAGES)
def test_a_table_with_a_constraint_is_refused(family):
    constraint = PACKAGES[family].constraints.NonNeg()
    if family == "keras3":
        table, kernel = (keras.Variable(value) for value in (TABLE, KERNEL))
        table.constraint = kernel.constraint = constraint
    else:
        table, kernel = (tf.Variable(value, constraint=constraint) for value in (TABLE, KERNEL))
    optimizer = OPTIMIZERS[family][0](RATE)
    step = runs.step_function(optimizer, table, kernel)
    ids, values, of_kernel = BATCHES[0].ids, BATCHES[0].values, BATCHES[0].kernel
    with pytest.raises(ValueError, match=r"sparse gradient.* and a constraint.*NonNeg"):
        step(tf.constant(ids), tf.constant(values), tf.constant(of_kernel))
    optimizer.apply_gradients([(tf.ones(TABLE.shape), table), (tf.constant(of_kernel), kernel)])
    assert np.min(tf.convert_to_tensor(table)) >= 0


@pytest.mark.parametrize("family", PACKAGES)
def test_weight_decay_can_be_excluded(family):
    def train(**arguments):
        table, kernel = tf.Variable(TABLE, name="mine"), tf.Variable(KERNEL, name="kernel")
        optimizer = OPTIMIZERS[family][0](RATE, **arguments)
        if arguments:
            optimizer.exclude_from_weight_decay(var_names=["mine"])
        runs.train_variables(optimizer, table, kernel, BATCHES)
        return table.numpy(), kernel.numpy()

    decayed, plain = train(weight_decay=0.1), train()
    np.testing.assert_array_equal(decayed[0], plain[0])
    assert np.all(decayed[1] != plain[1])


@pytest.mark.parametrize("family", PACKAGES)
def test_the_rate_follows_a_schedule(family):
    schedule = PACKAGES[family].optimizers.schedules.PiecewiseConstantDecay([1], [RATE, 0.0])
    table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
    optimizer = OPTIMIZERS[family][0](schedule)
    runs.train_variables(optimizer, table, kernel, BATCHES[:2], compiled=True)
    moved = table.numpy()
    assert np.any(moved != TABLE)
    runs.train_variables(optimizer, table, kernel, BATCHES[4:], compiled=True)
    np.testing.assert_array_equal(table.numpy(), moved)


CHANGED = {"beta_1": 0.8, "epsilon": 1e-3, "amsgrad": True, "weight_decay": 0.1, "clipnorm": 2.0}


@pytest.mark.parametrize("family", PACKAGES)
def test_the_configuration_survives_serialization(family):
    arguments = CHANGED | ({"adaptive_epsilon": True} if family == "tf_keras" else {})
    lazy, stock = OPTIMIZERS[family]
    optimizers = PACKAGES[family].optimizers
    first = lazy(0.25, **arguments)
    again = optimizers.deserialize(optimizers.serialize(first))
    assert type(again) is lazy
    assert again.get_config() == first.get_config()
    assert again.get_config().items() >= (arguments | {"learning_rate": 0.25}).items()
    assert type(lazy.from_config(stock(0.25).get_config())) is lazy


def model_of(family, optimizer):
    layers = PACKAGES[family].layers
    model = PACKAGES[family].Sequential(
        [
            layers.Input([3], dtype="int64"),
            layers.Embedding(30, 4, name="table"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, PACKAGES[family].losses.MeanSquaredError())
    return model


def table_of(model):
    return model.get_layer("table").get_weights()[0]


def fit(model, high):
    """Two epochs on ids below `high`, always the same; the table before and after."""
    before = table_of(model).copy()
    features = np.random.default_rng(0).integers(0, high, [64, 3])
    labels = features.sum(1).astype(np.float32)
    model.fit(features, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return before, table_of(model)


@pytest.mark.parametrize("which", ["lazy", "stock"])
@pytest.mark.parametrize("family", PACKAGES)
def test_fit_moves_the_rows_of_the_data(family, which):
    model = model_of(family, OPTIMIZERS[family][which == "stock"](RATE))
    fit(model, 20)
    before, after = fit(model, 10)
    moved = np.any(before != after, axis=1)
    assert moved[:10].all()
    assert moved[10:20].all() == (which == "stock")
    assert not moved[20:].any()


@pytest.mark.parametrize("family", PACKAGES)
def test_a_saved_model_goes_on_as_it_would_have(family, tmp_path):
    model = model_of(family, OPTIMIZERS[family][0](RATE))
    fit(model, 20)
    model.save(tmp_path / "model.keras")
    loaded = PACKAGES[family].models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is OPTIMIZERS[family][0]
    np.testing.assert_array_equal(table_of(loaded), table_of(model))
    for one in (loaded, model):
        fit(one, 10)
    np.testing.assert_array_equal(table_of(loaded), table_of(model))


@pytest.mark.parametrize("which", [("stock", "lazy"), ("lazy", "stock")])
@pytest.mark.parametrize("family", PACKAGES)
def test_either_restores_the_checkpoint_of_the_other(family, which, tmp_path):
    ends: list = []
    for name in which:
        table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
        optimizer = OPTIMIZERS[family][name == "stock"](RATE)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, table=table, kernel=kernel)
        if not ends:
            runs.train_variables(optimizer, table, kernel, BATCHES)
            path = checkpoint.write(tmp_path / "checkpoint")
        else:
            runs.step_function(optimizer, table, kernel)
            checkpoint.read(path).assert_consumed()
        assert int(optimizer.iterations) == len(BATCHES)
        ends.append([v.numpy() for v in runs.moments(optimizer, table, kernel).values()])
    assert all(np.any(value) for value in ends[0])
    for first, second in zip(*ends, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("family", PACKAGES)
def test_the_loss_can_be_scaled_by_the_wrapper(family):
    scaled, plain = tf.Variable(TABLE), tf.Variable(TABLE)
    inner, alone = (OPTIMIZERS[family][0](RATE) for _ in range(2))
    wrapper = PACKAGES[family].mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)
    for optimizer, table, scale in ((wrapper, scaled, 8.0), (alone, plain, 1.0)):
        for batch in BATCHES:
            gradient = tf.IndexedSlices(
                tf.constant(batch.values * scale), tf.constant(batch.ids), tf.constant(TABLE.shape)
            )
            if hasattr(optimizer, "get_unscaled_gradients"):  # tf_keras leaves it to the caller
                (gradient,) = optimizer.get_unscaled_gradients([gradient])
            optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_array_equal(scaled.numpy(), plain.numpy())
    assert np.any(scaled.numpy() != TABLE)


def test_replicas_move_the_rows_of_all_of_them_alike():
    subprocess.run([sys.executable, "-c", MIRRORED], check=True)


#: Needs two logical devices, which only a fresh process can have.
MIRRORED = """if True:
    import numpy as np
    import tensorflow as tf

    cpu, = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    from tests.optimizers.runs import DIM, OPTIMIZERS, TABLE, keras

    VALUES = np.sin(np.arange(6 * DIM, dtype=np.float32)).reshape(6, DIM)

    def train(family, strategy, ids, values):
        with strategy.scope():
            table = keras.Variable(TABLE) if family == "keras3" else tf.Variable(TABLE)
            optimizer = OPTIMIZERS[family][0](0.1, amsgrad=True, weight_decay=0.01)
            optimizer.build([table])

        @tf.function
        def step(ids, values):
            def in_replica(ids, values):
                gradient = tf.IndexedSlices(values, ids, tf.constant(TABLE.shape))
                optimizer.apply_gradients([(gradient, table)])

            strategy.run(in_replica, [ids, values])

        def distributed(parts):
            return strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(parts[context.replica_id_in_sync_group])
            )

        given = distributed(ids), distributed(values)
        for _ in range(3):
            step(*given)
        operations = step.get_concrete_function(*given).graph.get_operations()
        assert "ResourceScatterUpdate" in {op.type for op in operations}
        shapes = [out.shape for op in operations for out in op.outputs]
        assert tf.TensorShape(TABLE.shape) not in shapes, "a whole table is read"
        raw = table.value if family == "keras3" else table
        return [part.numpy() for part in strategy.experimental_local_results(raw)]

    for family in ("keras3", "tf_keras"):
        mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        ids = [[3, 5, 5], [5, 8, 9]]
        first, second = train(family, mirrored, ids, [VALUES[:3], VALUES[3:]])
        one = tf.distribute.OneDeviceStrategy("CPU:0")
        alone, = train(family, one, [ids[0] + ids[1]], [VALUES])
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, alone)
        moved = np.flatnonzero(np.any(first != TABLE, axis=1))
        assert moved.tolist() == [3, 5, 8, 9], moved
"""
