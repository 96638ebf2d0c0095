"""Optimizers of both Kerases over tables of embedding variables."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.ops.tables.cpu_kernels.layout import MAX_SLOTS
from fusion.optimizers import keras3, v1
from fusion.optimizers import tf_keras as ours_of_tf_keras
from fusion.tables import EmbeddingVariable

KERAS = {"keras3": keras, "tf_keras": tf_keras}
OURS = {"keras3": keras3, "tf_keras": ours_of_tf_keras}
EACH_KERAS = pytest.mark.parametrize("family", KERAS)

ROWS, DIM = 20, 3
#: A table of 1 GiB, whose slots would be as large.
MANY_ROWS = 2**30 // (4 * DIM)
#: Optimizers whose updates of sparse gradients move no other rows, with their arguments.
OURS_OF: dict[str, dict[str, Any]] = {
    "Adagrad": {},
    "LazyAdam": {},
    "LazyAdam amsgrad": {"amsgrad": True},
    "LazyMomentum": {"momentum": 0.5},
    "LazyFtrl": {},
    "LazyFtrl another power": {"learning_rate_power": -0.25},
    "LazyAdam decay": {"weight_decay": 0.125},
}
#: Stock ones that have variables beside a table.
STOCK = ["Adam", "Adagrad", "Ftrl", "RMSprop", "Adadelta", "Nadam"]


def _ours(family, rule):
    return getattr(OURS[family], rule.split(" ", 1)[0])(0.25, **OURS_OF[rule])


def _variable(capacity=2 * ROWS, **arguments):
    initializer = tf.constant_initializer(0.5)
    return EmbeddingVariable("table", DIM, initializer=initializer, capacity=capacity, **arguments)


def _batches(count=5):
    rng = np.random.default_rng(3)
    return [tf.constant(rng.integers(0, ROWS, 8)) for _ in range(count)]


def _train(optimizer, table, look_up, batches, compiled=True):
    """The losses of steps that apply the gradients of a lookup to a table."""
    factors = tf.reshape(tf.range(1.0, 25.0), [8, DIM])

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(look_up(ids) * factors - 1))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    optimizer.build([table])
    run = tf.function(step) if compiled else step
    return [float(run(ids)) for ids in batches]


def _resident():
    with open("/proc/self/status", encoding="ascii") as lines:
        return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@EACH_KERAS
@pytest.mark.parametrize("rule", OURS_OF)
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_are_those_of_a_plain_table(family, rule, compiled):
    variable, plain = _variable(), tf.Variable(tf.fill([ROWS, DIM], 0.5))
    ours = _train(
        _ours(family, rule), variable.table, variable.embedding_lookup, _batches(), compiled
    )
    expected = _train(
        _ours(family, rule), plain, lambda ids: tf.gather(plain, ids), _batches(), compiled
    )
    assert ours == expected
    assert len(set(ours)) == len(ours)
    np.testing.assert_array_equal(
        variable.embedding_lookup(_batches()[0]), tf.gather(plain, _batches()[0])
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_the_adagrad_of_tf_keras_is_stock_s(compiled):
    def train(optimizer):
        table = tf.Variable(tf.fill([ROWS, DIM], 0.5))
        look_up = lambda ids: tf.gather(table, ids)  # noqa: E731
        return _train(optimizer(0.25), table, look_up, _batches(), compiled), table.numpy()

    (ours, table), (stock, other) = map(
        train, (ours_of_tf_keras.Adagrad, tf_keras.optimizers.Adagrad)
    )
    # TensorFlow's optimizer of graphs rearranges stock's products.
    tolerance = 1e-5 if compiled else 0
    np.testing.assert_allclose(ours, stock, tolerance)
    np.testing.assert_allclose(table, other, tolerance)


@EACH_KERAS
def test_another_optimizer_fills_the_rows_that_are_there(family):
    variable, plain = _variable(), tf.Variable(tf.fill([ROWS, DIM], 0.5))
    for rule in ("Adagrad", "Adagrad", "LazyFtrl"):
        ours = _train(_ours(family, rule), variable.table, variable.embedding_lookup, _batches())
        expected = _train(_ours(family, rule), plain, lambda ids: tf.gather(plain, ids), _batches())
        assert ours == expected


@EACH_KERAS
def test_too_many_slots_that_do_not_begin_with_zeros(family):
    variable = _variable()
    for _ in range(MAX_SLOTS):
        _ours(family, "Adagrad").build([variable.table])
    _ours(family, "LazyAdam").build([variable.table])
    with pytest.raises(NotImplementedError, match=f"more than {MAX_SLOTS} optimizer variables"):
        _ours(family, "Adagrad").build([variable.table])


@EACH_KERAS
@pytest.mark.parametrize("rule", ["Adagrad", "LazyAdam amsgrad", "LazyMomentum", "LazyFtrl"])
def test_slots_take_memory_when_rows_are_trained(family, rule):
    variable, optimizer = _variable(MANY_ROWS), _ours(family, rule)
    before = _resident()
    losses = _train(optimizer, variable.table, variable.embedding_lookup, _batches(2))
    assert _resident() - before < 2**28
    assert losses[0] != losses[1]
    variables = [v for v in optimizer.variables if len(v.shape) == 2]
    assert {tuple(v.shape) for v in variables} == {(MANY_ROWS, DIM)}

    sizes = (
        [np.prod(slot.shape) for slot in optimizer.variables[1:] if len(slot.shape) == 2]
        if (family == "keras3")
        else [np.prod(slot.shape) for slot in optimizer.variables if len(slot.shape) == 2]
    )
    assert sizes
    assert set(sizes) == {MANY_ROWS * DIM}


@EACH_KERAS
@pytest.mark.parametrize("name", STOCK)
def test_stock_optimizers_refuse_tables_of_default_capacity(family, name):
    variable, optimizer = _variable(None), getattr(KERAS[family].optimizers, name)(0.25)
    match = f"of {name} would take memory for all {variable.capacity} rows .* 'table:0'.*capacity"
    with pytest.raises(ValueError, match=match):
        optimizer.build([variable.table])


@EACH_KERAS
@pytest.mark.parametrize("name", STOCK)
def test_stock_optimizers_train_small_tables(family, name):
    variable, plain = _variable(ROWS), tf.Variable(tf.fill([ROWS, DIM], 0.5))
    every = [tf.constant([*range(8)])] * 2
    made = getattr(KERAS[family].optimizers, name)
    ours = _train(made(0.25), variable.table, variable.embedding_lookup, every)
    assert ours == _train(made(0.25), plain, lambda ids: tf.gather(plain, ids), every)


@EACH_KERAS
@pytest.mark.parametrize("arguments", [{"momentum": 0.5}, {"use_ema": True}])
def test_sgd_with_variables_refuses_tables_of_default_capacity(family, arguments):
    variable = _variable(None)
    optimizer = KERAS[family].optimizers.SGD(0.25, **arguments)
    with pytest.raises(ValueError, match="of SGD would take memory for all"):
        optimizer.build([variable.table])


@pytest.mark.parametrize(
    ("family", "argument"),
    [
        *(("keras3", name) for name in ("clipnorm", "global_clipnorm", "clipvalue")),
        *((family, "weight_decay") for family in KERAS),
    ],
)
def test_arguments_for_whole_tables(family, argument):
    variable, small = _variable(None), _variable()
    sgd, ours = KERAS[family].optimizers.SGD, OURS[family].LazyAdam
    with pytest.raises(ValueError, match=f"argument '{argument}' of SGD would take memory"):
        sgd(0.25, **{argument: 0.5}).build([variable.table])
    for optimizer, one in ((sgd, small), (ours, variable)):
        made = optimizer(0.25, **{argument: 0.5})
        losses = _train(made, one.table, one.embedding_lookup, [tf.range(8, dtype=tf.int64)] * 2)
        assert losses[0] != losses[1]


@pytest.mark.parametrize("argument", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_tf_keras_clips_rows(argument):
    variable = _variable(None)
    before = _resident()
    optimizer = tf_keras.optimizers.SGD(0.25, **{argument: 0.5})
    losses = _train(optimizer, variable.table, variable.embedding_lookup, _batches(2))
    assert losses[0] != losses[1]
    assert _resident() - before < 2**28


def test_legacy_optimizers_refuse_tables_of_default_capacity():
    variable, small = _variable(None), _variable()
    gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([0]), None)
    optimizer = tf_keras.optimizers.legacy.Adam(0.25)
    with pytest.raises(ValueError, match="'m' of Adam would take memory for all"):
        optimizer.apply_gradients([(gradient, variable.table)])
    optimizer.apply_gradients([(gradient, small.table)])
    assert float(small.table[0, 0]) == pytest.approx(-0.25, rel=1e-3)


@EACH_KERAS
@pytest.mark.parametrize("compiled", [False, True])
def test_sgd_trains_tables_of_default_capacity(family, compiled):
    variable, plain = _variable(None), tf.Variable(tf.fill([ROWS, DIM], 0.5))
    before = _resident()
    sgd = KERAS[family].optimizers.SGD
    ours = _train(sgd(0.001), variable.table, variable.embedding_lookup, _batches(), compiled)
    assert _resident() - before < 2**28
    assert ours == _train(sgd(0.001), plain, lambda ids: tf.gather(plain, ids), _batches())


def test_lazy_adam_of_v1_trains_eagerly():
    variable, plain = _variable(MANY_ROWS), tf.Variable(tf.fill([ROWS, DIM], 0.5))

    def losses(table, look_up):
        optimizer, found = v1.LazyAdamOptimizer(0.25), []
        for ids in _batches(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(look_up(ids) - 1))
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            found.append(float(loss))
        return found

    before = _resident()
    ours = losses(variable.table, variable.embedding_lookup)
    assert _resident() - before < 2**28
    assert ours == losses(plain, lambda ids: tf.gather(plain, ids))


def test_other_tables_are_none_of_an_embedding_variable():
    variable, other = _variable(), tf.Variable(tf.zeros([ROWS, DIM]))
    assert EmbeddingVariable.of(other) is None
    assert EmbeddingVariable.of(variable.index) is None
    assert EmbeddingVariable.of(None) is None
    table = variable.table
    assert EmbeddingVariable.of(table) is variable
    del variable
    gc.collect()
    found = EmbeddingVariable.of(table)
    assert found is not None  # a checkpoint of the table needs it
    del found
    handle = weakref.ref(table)
    del table
    gc.collect()
    assert handle() is None
