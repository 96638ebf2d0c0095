"""The row-sparse optimizers in Keras: arguments they refuse, models, files and wrappers."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests import zygote
from tests.optimizers import runs
from tests.optimizers.runs import BATCHES, KERAS, KERNEL, OPTIMIZERS, RATE, TABLE

PACKAGES = {"keras3": keras, "tf_keras": tf_keras}
REFUSED: dict[str, list[dict]] = {
    "keras3": [{"use_ema": True}, {"gradient_accumulation_steps": 2}, {"loss_scale_factor": 2.0}],
    "tf_keras": [{"use_ema": True}],
}


def package_of(name):
    return PACKAGES[name.partition(" ")[0]]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, arguments) for name in KERAS for arguments in REFUSED[name.partition(" ")[0]]]
    + [("keras3 adagrad", {"weight_decay": 0.1})],
)
def test_arguments_that_cannot_be_right_are_refused(name, arguments):
    ((argument, value),) = arguments.items()
    pair = OPTIMIZERS[name]
    message = f"{pair.ours.__name__} does not support {argument}, got {value}: "
    with pytest.raises(ValueError, match=message):
        pair.make("lazy", **arguments)
    pair.make("stock", **arguments)
    pair.make("lazy", **dict.fromkeys(arguments))


@pytest.mark.parametrize("family", PACKAGES)
def test_momentum_must_be_given_and_above_0(family):
    pair = OPTIMIZERS[f"{family} momentum"]
    with pytest.raises(ValueError, match="LazyMomentum needs a momentum above 0"):
        pair.make("lazy", momentum=0.0)
    with pytest.raises(TypeError, match="momentum"):
        pair.ours(RATE)
    assert pair.make("stock", momentum=0.0).momentum == 0


@pytest.mark.parametrize("name", KERAS)
def test_a_table_with_a_constraint_is_refused(name):
    constraint = package_of(name).constraints.NonNeg()
    if package_of(name) is keras:
        table, kernel = (keras.Variable(value) for value in (TABLE, KERNEL))
        table.constraint = kernel.constraint = constraint
    else:
        table, kernel = (tf.Variable(value, constraint=constraint) for value in (TABLE, KERNEL))
    optimizer = OPTIMIZERS[name].make("lazy")
    step = runs.step_function(optimizer, table, kernel)
    ids, values, of_kernel = BATCHES[0].ids, BATCHES[0].values, BATCHES[0].kernel
    with pytest.raises(ValueError, match=r"sparse gradient.* and a constraint.*NonNeg"):
        step(tf.constant(ids), tf.constant(values), tf.constant(of_kernel))
    optimizer.apply_gradients([(tf.ones(TABLE.shape), table), (tf.constant(of_kernel), kernel)])
    assert np.min(tf.convert_to_tensor(table)) >= 0


@pytest.mark.parametrize("name", [name for name in KERAS if name != "keras3 adagrad"])
def test_weight_decay_can_be_excluded(name):
    def train(**arguments):
        table, kernel = tf.Variable(TABLE, name="mine"), tf.Variable(KERNEL, name="kernel")
        optimizer = OPTIMIZERS[name].make("lazy", **arguments)
        if arguments:
            optimizer.exclude_from_weight_decay(var_names=["mine"])
        runs.train_variables(optimizer, table, kernel, BATCHES)
        return table.numpy(), kernel.numpy()

    decayed, plain = train(weight_decay=0.1), train()
    np.testing.assert_array_equal(decayed[0], plain[0])
    assert np.all(decayed[1] != plain[1])


@pytest.mark.parametrize("name", KERAS)
def test_the_rate_follows_a_schedule(name):
    schedules = package_of(name).optimizers.schedules

    def train(rate, then=None):
        table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
        optimizer = OPTIMIZERS[name].make("lazy", rate)
        runs.train_variables(optimizer, table, kernel, BATCHES[:2])
        if then:
            optimizer.learning_rate = then
        runs.train_variables(optimizer, table, kernel, BATCHES[4:])
        return table.numpy()

    scheduled = train(schedules.PiecewiseConstantDecay([1], [RATE, 0.01]))
    np.testing.assert_array_equal(scheduled, train(RATE, then=0.01))
    assert np.any(scheduled != train(RATE))


@pytest.mark.parametrize("family", PACKAGES)
def test_ftrl_needs_a_rate_above_0(family):
    table = tf.Variable(TABLE)
    gradient = runs.slices(tf.ones([1, TABLE.shape[1]]), tf.constant([2]))
    optimizer = OPTIMIZERS[f"{family} ftrl"].make("lazy", 0.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="lr is not a positive scalar"):
        optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_array_equal(table.numpy(), TABLE)


@pytest.mark.parametrize("family", PACKAGES)
def test_ftrl_differs_from_stock_in_what_it_does_to_initial_rows(family):
    def train(which, start):
        table, kernel = tf.Variable(start), tf.Variable(KERNEL)
        optimizer = OPTIMIZERS[f"{family} ftrl"].make(
            which, l2_shrinkage_regularization_strength=0.0
        )
        runs.train_variables(optimizer, table, kernel, batches)
        return table.numpy()

    batches = [runs.Batch.random(ids, seed) for seed, ids in enumerate(([3, 5], [5, 16, 2], [3]))]
    others = runs.untouched(batches)
    np.testing.assert_array_equal(train("lazy", TABLE)[others], TABLE[others])
    np.testing.assert_array_equal(train("stock", TABLE)[others], 0)
    lazy, stock = (train(which, np.zeros_like(TABLE)) for which in ("lazy", "stock"))
    np.testing.assert_allclose(lazy, stock, rtol=1e-5, atol=1e-6)
    assert np.any(lazy)


CHANGED: dict[str, dict] = {
    "adam": {"beta_1": 0.8, "epsilon": 1e-3, "amsgrad": True, "weight_decay": 0.1},
    "momentum": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    "ftrl": {**runs.FTRL, "learning_rate_power": -0.4, "weight_decay": 0.1},
    "adagrad": {"epsilon": 1e-3, "initial_accumulator_value": 0.5},
}


@pytest.mark.parametrize("name", KERAS)
def test_the_configuration_survives_serialization(name):
    arguments = CHANGED[name.partition(" ")[2]] | {"clipnorm": 2.0}
    if name == "tf_keras adam":
        arguments |= {"adaptive_epsilon": True}
    pair, optimizers = OPTIMIZERS[name], package_of(name).optimizers
    first = pair.make("lazy", 0.25, **arguments)
    again = optimizers.deserialize(optimizers.serialize(first))
    assert type(again) is pair.ours
    assert again.get_config() == first.get_config()
    assert again.get_config().items() >= (arguments | {"learning_rate": 0.25}).items()
    assert type(pair.ours.from_config(pair.make("stock").get_config())) is pair.ours


def model_of(package, optimizer):
    layers = package.layers
    model = package.Sequential(
        [
            layers.Input([3], dtype="int64"),
            layers.Embedding(30, 4, name="table"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, package.losses.MeanSquaredError())
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
    model = model_of(PACKAGES[family], OPTIMIZERS[f"{family} adam"].make(which))
    fit(model, 20)
    before, after = fit(model, 10)
    moved = np.any(before != after, axis=1)
    assert moved[:10].all()
    assert moved[10:20].all() == (which == "stock")
    assert not moved[20:].any()


@pytest.mark.parametrize("name", [*(n for n in KERAS if n.startswith("keras3")), "tf_keras adam"])
def test_a_saved_model_goes_on_as_it_would_have(name, tmp_path):
    package = package_of(name)
    model = model_of(package, OPTIMIZERS[name].make("lazy"))
    fit(model, 20)
    model.save(tmp_path / "model.keras")
    loaded = package.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is OPTIMIZERS[name].ours
    np.testing.assert_array_equal(table_of(loaded), table_of(model))
    for one in (loaded, model):
        fit(one, 10)
    np.testing.assert_array_equal(table_of(loaded), table_of(model))


@pytest.mark.parametrize("which", [("stock", "lazy"), ("lazy", "stock")])
@pytest.mark.parametrize("name", KERAS)
def test_either_restores_the_checkpoint_of_the_other(name, which, tmp_path):
    ends: list = []
    names: list = []
    for one in which:
        table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
        optimizer = OPTIMIZERS[name].make(one)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, table=table, kernel=kernel)
        if not ends:
            runs.train_variables(optimizer, table, kernel, BATCHES)
            path = checkpoint.write(tmp_path / "checkpoint")
        else:
            runs.step_function(optimizer, table, kernel)
            checkpoint.read(path).assert_consumed()
        assert int(optimizer.iterations) == len(BATCHES)
        names.append([v.name for v in optimizer.variables])
        ends.append([v.numpy() for v in runs.moments(optimizer, table, kernel).values()])
    assert names[0] == names[1]
    assert all(np.any(value) for value in ends[0])
    for first, second in zip(*ends, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", KERAS)
def test_the_loss_can_be_scaled_by_the_wrapper(name):
    scaled, plain = tf.Variable(TABLE), tf.Variable(TABLE)
    inner, alone = (OPTIMIZERS[name].make("lazy") for _ in range(2))
    wrapper = package_of(name).mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)
    for optimizer, table, scale in ((wrapper, scaled, 8.0), (alone, plain, 1.0)):
        for batch in BATCHES:
            gradient = runs.slices(tf.constant(batch.values * scale), tf.constant(batch.ids))
            if hasattr(optimizer, "get_unscaled_gradients"):  # tf_keras leaves it to the caller
                (gradient,) = optimizer.get_unscaled_gradients([gradient])
            optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_array_equal(scaled.numpy(), plain.numpy())
    assert np.any(scaled.numpy() != TABLE)


def test_replicas_move_the_rows_of_all_of_them_alike():
    zygote.run([sys.executable, "-c", MIRRORED], check=True)


#: Needs two logical devices, which only a fresh process can have.
MIRRORED = """if True:
    import numpy as np
    import tensorflow as tf

    cpu, = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    from tests.optimizers.runs import DIM, KERAS, OPTIMIZERS, TABLE, keras

    ARGUMENTS = {"adam": {"weight_decay": 0.01}, "ftrl": {"weight_decay": 0.01}}
    VALUES = np.sin(np.arange(6 * DIM, dtype=np.float32)).reshape(6, DIM)

    def train(name, strategy, ids, values):
        with strategy.scope():
            table = keras.Variable(TABLE) if name.startswith("keras3") else tf.Variable(TABLE)
            optimizer = OPTIMIZERS[name].make("lazy", **ARGUMENTS.get(name.split()[1], {}))
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
        updates = sum(op.type == "FusedEmbeddingUpdate" for op in operations)
        assert updates == strategy.num_replicas_in_sync, name
        shapes = [out.shape for op in operations for out in op.outputs]
        assert tf.TensorShape(TABLE.shape) not in shapes, "a whole table is read"
        raw = table.value if name.startswith("keras3") else table
        return [part.numpy() for part in strategy.experimental_local_results(raw)]

    for name in KERAS:
        mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        ids = [[3, 5, 5], [5, 8, 9]]
        first, second = train(name, mirrored, ids, [VALUES[:3], VALUES[3:]])
        one = tf.distribute.OneDeviceStrategy("CPU:0")
        alone, = train(name, one, [ids[0] + ids[1]], [VALUES])
        np.testing.assert_array_equal(first, second, name)
        np.testing.assert_array_equal(first, alone, name)
        moved = np.flatnonzero(np.any(first != TABLE, axis=1))
        assert moved.tolist() == [3, 5, 8, 9], (name, moved)
"""
