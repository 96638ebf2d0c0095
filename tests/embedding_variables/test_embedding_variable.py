"""`EmbeddingVariable`: what trains keys and what does not, values, and arguments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.ops.tables.cpu_kernels.layout import MAX_ROWS, MAX_SLOTS, KeyIndex
from fusion.tables import EmbeddingVariable, PartitionedEmbeddingVariable
from fusion.tables.slots import Slots
from tests.embedding_variables.ways import DENSE, SPARSE, eager, loss_of

v1 = tf.compat.v1

_numbers = itertools.count()


def variable(dimension=3, capacity=100, **arguments):
    """An embedding variable whose new rows are ones."""
    arguments = {"initializer": tf.keras.initializers.Ones()} | arguments
    return EmbeddingVariable(f"table_{next(_numbers)}", dimension, capacity=capacity, **arguments)


def keys(*values):
    return tf.constant(values, tf.int64)


def known(table, asked):
    """Which keys have a row, as inference says: rows are ones, the default is zeros."""
    return table.embedding_lookup(asked).numpy()[:, 0].astype(bool).tolist()


def rows_in_use(table):
    return int(table.index.numpy()[KeyIndex.row_count : KeyIndex.row_count + 1].view(np.int64)[0])


@pytest.mark.parametrize("way", [*SPARSE, *DENSE])
def test_keys_whose_gradient_is_asked_for_get_rows(way):
    table, other = variable(), keys(5, 9, 5, -7)
    gradient = (SPARSE | DENSE)[way](table, other)
    assert isinstance(gradient, tf.IndexedSlices) == (way in SPARSE)
    assert known(table, keys(5, 9, -7, 6)) == [True, True, True, False]
    assert rows_in_use(table) == 3
    expected = np.zeros([100, 3], np.float32)
    expected[:3] = np.outer([2, 1, 1], [1, 2, 3])
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)


@pytest.mark.parametrize("way", [*SPARSE, *DENSE])
def test_gradients_have_rows_of_known_keys_only(way):
    table = variable(admission=2)
    eager(table, keys(1))
    gradient = tf.convert_to_tensor((SPARSE | DENSE)[way](table, keys(2, 1, 3))).numpy()
    np.testing.assert_array_equal(gradient[0], [1, 2, 3])
    assert not gradient[1:].any()
    assert known(table, keys(1, 2, 3)) == [True, False, False]


def test_inference_inserts_nothing():
    table = variable()
    for look_up in (table.embedding_lookup, tf.function(table.embedding_lookup)):
        np.testing.assert_array_equal(look_up(keys(1, 2)), np.zeros([2, 3]))
        with tf.GradientTape() as tape, tape.stop_recording():
            look_up(keys(1, 2))
    assert rows_in_use(table) == 0
    assert known(table, keys(1, 2)) == [False, False]


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_function_that_was_trained_inserts_nothing_afterwards(is_nested):
    table = variable()
    look_up = tf.function(table.embedding_lookup)
    if is_nested:
        look_up = tf.function(look_up)
    look_up(keys(1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up(keys(1, 2)))
    tape.gradient(loss, table.table)
    assert rows_in_use(table) == 2
    np.testing.assert_array_equal(look_up(keys(2, 3))[:, 0], [1, 0])
    look_up(keys(3, 4, 5, 6, 7))  # of another shape: traced again
    assert rows_in_use(table) == 2


def test_an_inner_function_that_was_trained_inserts_nothing_afterwards():
    table = variable()
    inner = tf.function(table.embedding_lookup)

    @tf.function
    def train(some):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner(some))
        return tape.gradient(loss, table.table).indices

    infer = tf.function(lambda some: inner(some) * 2)
    infer(keys(1, 2))
    assert train(keys(1, 2)).numpy().tolist() == [0, 1]
    for function, factor in ((inner, 1), (infer, 2), (tf.function(lambda k: inner(k) * 3), 3)):
        np.testing.assert_array_equal(function(keys(2, 3))[:, 0], [factor, 0])
    assert rows_in_use(table) == 2


def test_a_saved_model_of_a_trained_function_inserts_nothing(tmp_path):
    table = variable()
    module = tf.Module()
    module.variable = table
    module.look_up = tf.function(
        table.embedding_lookup, input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(module.look_up(keys(4, 5)))
    tape.gradient(loss, table.table)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for _ in range(2):
        np.testing.assert_array_equal(loaded.look_up(keys(5, 6))[:, 0], [1, 0])


def test_a_gradient_that_is_asked_for_another_variable_in_a_function_trains_nothing():
    table, scale = variable(), tf.Variable(2.0)

    @tf.function
    def train(some):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(scale)
            loss = tf.reduce_sum(table.embedding_lookup(some)) * scale
        return tape.gradient(loss, scale)

    assert train(keys(1, 2)).numpy() == 0
    assert rows_in_use(table) == 0


def test_a_tape_that_does_not_watch_the_table_trains_nothing():
    table, scale = variable(), tf.Variable(2.0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(scale)
        loss = tf.reduce_sum(table.embedding_lookup(keys(1, 2))) * scale
    assert tape.gradient(loss, scale).numpy() == 0
    assert rows_in_use(table) == 0
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(table.table)
        loss = tf.reduce_sum(table.embedding_lookup(keys(1, 2)))
    assert tape.gradient(loss, table.table).indices.numpy().tolist() == [0, 1]


def test_default_values_are_read_until_a_key_has_a_row():
    table = variable(default_value=[4, 5, 6], admission=2)
    np.testing.assert_array_equal(table.embedding_lookup(keys(1)), [[4, 5, 6]])
    with tf.GradientTape():
        np.testing.assert_array_equal(table.embedding_lookup(keys(1, 2)), [[4, 5, 6]] * 2)
        np.testing.assert_array_equal(table.embedding_lookup(keys(1)), [[1] * 3])
    np.testing.assert_array_equal(table.embedding_lookup(keys(2, 1)), [[4, 5, 6], [1] * 3])


def test_one_default_value_is_that_of_all_columns():
    np.testing.assert_array_equal(
        variable(default_value=0.5).embedding_lookup(keys(1)), [[0.5] * 3]
    )


def test_counts_admit():
    table = variable(admission=5)
    with tf.GradientTape():
        table.embedding_lookup(keys(1, 2, 3), counts=[4, 5, 1])
    assert known(table, keys(1, 2, 3)) == [False, True, False]
    with tf.GradientTape():
        table.embedding_lookup(keys(1, 3), counts=[1, 3])
    assert known(table, keys(1, 2, 3)) == [True, True, False]


@pytest.mark.parametrize("key_dtype", ["int32", "int64", "string"])
def test_keys_of_every_dtype(key_dtype):
    table = variable(key_dtype=key_dtype)
    names = [b"7", b"8", b"", b"seven"] if key_dtype == "string" else [7, 8, 0, -7]
    trained, other = tf.constant(names[:3], key_dtype), tf.constant(names, key_dtype)
    gradient = eager(table, trained)
    assert gradient.indices.numpy().tolist() == [0, 1, 2]
    assert known(table, other) == [True, True, True, False]
    assert known(table, names) == [True, True, True, False]


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3), (2, 0, 3), (1, 2, 2, 1)])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_keys_of_any_shape(shape, wrap):
    table = variable(capacity=20, initializer=tf.keras.initializers.RandomNormal(seed=1))
    some = tf.reshape(tf.range(np.prod(shape, dtype=int), dtype=tf.int64), shape)
    gradient = wrap(eager)(table, some)
    assert gradient.indices.shape == [np.prod(shape, dtype=int)]
    values = wrap(table.embedding_lookup)(some)
    assert values.shape == (*shape, 3)
    np.testing.assert_array_equal(
        tf.reshape(values, [-1, 3]), table.table.numpy()[: gradient.indices.shape[0]]
    )


def test_the_shape_of_the_result_is_known_where_that_of_the_keys_is():
    with tf.Graph().as_default():
        table = variable()
        for shape in ([None], [None, 4], [2, 3], []):
            found = table.embedding_lookup(v1.placeholder(tf.int64, shape))
            assert found.shape.as_list() == [*shape, 3]


@pytest.mark.parametrize("way", ["eager", "tape_in_function", "tape_around_function"])
def test_what_is_not_trainable_is_not_trained(way):
    table = variable(trainable=False)
    assert SPARSE[way](table, keys(1, 2)) is None
    assert rows_in_use(table) == 0


def test_a_key_that_finds_no_room_is_an_error_and_nothing_is_lost():
    table = variable(capacity=2)
    eager(table, keys(1))
    for way in ("eager", "tape_in_function", "tape_around_function"):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="capacity of 2 rows"):
            SPARSE[way](table, keys(1, 2, 3))
    assert known(table, keys(1, 2, 3)) == [True, True, False]
    assert known(table, keys(3)) == [False]


def test_training_steps_are_noted():
    step = tf.Variable(7, dtype=tf.int64)
    table = variable(step=lambda: step)
    eager(table, keys(1, 2, 1))
    step.assign(9)
    SPARSE["tape_in_function"](table, keys(2))
    words = table.index.numpy().view(np.int64)
    start = int(words[KeyIndex.records]) // 8
    records = words[start : start + 2].view(np.int32).reshape(2, 2)
    assert records.tolist() == [[2, 7], [2, 9]]


def test_initial_values_are_those_of_the_initializer_by_key_and_seed():
    def made(name, some, **arguments):
        initializer = tf.keras.initializers.RandomNormal(seed=3)
        table = EmbeddingVariable(name, 4, capacity=300, initializer=initializer, **arguments)
        eager(table, some)
        return table, table.embedding_lookup(some).numpy()

    some = tf.range(200, dtype=tf.int64)
    table, values = made("one", some)
    assert {*values.ravel()} <= {*table.initial.numpy()[1:].ravel()}
    assert len(np.unique(values, axis=0)) == 200
    np.testing.assert_array_equal(made("one", some[::-1])[1][::-1], values)
    assert (made("two", some)[1] != values).any()
    seeded = made("one", some, seed=5)[1]
    assert (seeded != values).any()
    np.testing.assert_array_equal(made("two", some, seed=5)[1], seeded)


def test_a_v1_graph_trains_keys_whose_gradient_is_asked_for():
    with tf.Graph().as_default(), v1.Session() as session:
        table = variable()
        fed = v1.placeholder(tf.int64, [None])
        inference = table.embedding_lookup(fed)
        (gradient,) = tf.gradients(loss_of(table, fed), [table.table])
        train = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, table.table)])
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(inference, {fed: [4, 5]}), np.zeros([2, 3]))
        assert session.run(gradient.indices, {fed: [4, 6, 4]}).tolist() == [0, 1, 0]
        session.run(train, {fed: [4, 7]})
        expected = [[0, -1, -2], [1, 1, 1], [0, -1, -2], [0, 0, 0]]
        for _ in range(2):
            found = session.run(inference, {fed: [4, 6, 7, 5]})
            np.testing.assert_array_equal(found, expected)


def test_variables_have_the_names_of_stock_s():
    for context in (tf.Graph().as_default(), tf.init_scope()):
        with context:
            table = EmbeddingVariable("emb", 2, capacity=9)
            assert (table.name, table.table.name) == ("emb", "emb:0")
            assert table.index.name == "emb/key_index:0"
            with tf.name_scope("scope"):
                assert EmbeddingVariable("emb", 2, capacity=9).table.name == "scope/emb:0"
                parts = PartitionedEmbeddingVariable("parts", 2, 2, capacity=9)
            assert [part.name for part in parts.tables] == [
                f"scope/parts/part_{number}:0" for number in range(2)
            ]


@pytest.mark.parametrize("has_control_flow_v2", [False, True])
def test_a_v1_graph_trains_keys_in_a_cond(has_control_flow_v2):
    before = v1.control_flow_v2_enabled()
    switch = v1.enable_control_flow_v2 if has_control_flow_v2 else v1.disable_control_flow_v2
    switch()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            table, taken = variable(), v1.placeholder(tf.bool, [])
            loss = v1.cond(taken, lambda: loss_of(table, keys(3, 8)), lambda: tf.constant(0.0))
            (gradient,) = tf.gradients(loss, [table.table])
            dense = tf.convert_to_tensor(gradient)
            session.run(v1.global_variables_initializer())
            assert not session.run(dense, {taken: False}).any()
            assert session.run(dense, {taken: True})[:3].tolist() == [[1, 2, 3]] * 2 + [[0] * 3]
    finally:
        (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()


def power_law(count, batch, seed):
    """Batches of ids of a power law whose frequent ids change in time."""
    rng = np.random.default_rng(seed)
    for start in range(0, count, batch):
        ranks = rng.zipf(1.2, batch) % 1_000_003
        yield (ranks + start // (4 * batch) * 17) * 2654435761 % 2**40


@pytest.mark.parametrize("admission", [1, 3])
def test_a_stream_of_a_drifting_power_law_is_as_a_dict(admission):
    table = variable(
        2,
        capacity=200_000,
        admission=admission,
        default_value=-1,
        initializer=tf.keras.initializers.RandomUniform(1, 2, seed=0),
    )
    rate = np.float32(0.25)

    @tf.function(reduce_retracing=True)
    def train(some, counts, targets):
        with tf.GradientTape() as tape:
            rows = table.embedding_lookup(some, counts)
            loss = tf.reduce_sum(rows * targets)
        slices = tape.gradient(loss, table.table)
        table.table.scatter_sub(tf.IndexedSlices(slices.values * rate, slices.indices))
        return rows

    seen, values = dict[int, int](), dict[int, Any]()
    rng = np.random.default_rng(1)
    default = np.full(2, -1, np.float32)
    for ids in power_law(300_000, 10_000, seed=2):
        some, counts = np.unique(ids, return_counts=True)
        targets = rng.normal(size=[len(some), 2]).astype(np.float32)
        rows = train(tf.constant(some), tf.constant(counts, tf.int32), targets).numpy()
        for key, count, row, target in zip(some.tolist(), counts, rows, targets, strict=True):
            seen[key] = seen.get(key, 0) + count
            if seen[key] >= admission:
                if key not in values:
                    assert (row >= 1).all()
                    values[key] = row
                assert (values[key] == row).all()
                values[key] = row - rate * target
            else:
                assert (row == default).all()
    assert rows_in_use(table) == len(values) > 1000
    every = np.array([*seen])
    expected = np.array([values.get(key, default) for key in every.tolist()])
    np.testing.assert_array_equal(table.embedding_lookup(every), expected)
    assert admission == 1 or len(seen) > len(values)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dimension": 0}, ValueError, "dimension must be at least 1, got 0"),
        ({"dimension": -3}, ValueError, "dimension must be at least 1, got -3"),
        ({"dimension": 2.0}, TypeError, r"dimension must be an integer, got 2\.0"),
        ({"dimension": None}, TypeError, "dimension must be an integer, got None"),
        ({"capacity": 0}, ValueError, "capacity must be at least 1, got 0"),
        ({"capacity": "9"}, TypeError, "capacity must be an integer, got '9'"),
        ({"capacity": 2**31}, ValueError, f"capacity must be at most {MAX_ROWS}, got {2**31}"),
        ({"admission": 0}, ValueError, "admission must be at least 1, got 0"),
        ({"admission": 1.5}, TypeError, r"admission must be an integer, got 1\.5"),
        ({"sample_count": 0}, ValueError, "sample_count must be at least 1, got 0"),
        ({"dtype": "float16"}, TypeError, "dtype must be one of .*, got float16"),
        ({"dtype": "nothing"}, TypeError, "dtype must be one of .*, got 'nothing'"),
        ({"key_dtype": "float32"}, TypeError, "key_dtype must be one of .*, got float32"),
        ({"initializer": 3}, TypeError, "initializer must be callable, got 3"),
        ({"default_value": [1, 2]}, ValueError, r"default_value must be .* 3 of them, got \[1, 2"),
        ({"default_value": float("nan")}, ValueError, "default_value must be .*, got nan"),
        ({"seed": "a"}, TypeError, "seed must be an integer, got 'a'"),
        ({"seed": 2**63}, ValueError, "seed must be at most 9223372036854775807"),
        ({"default_value": "a"}, ValueError, "default_value must be a finite number"),
        ({"initializer": lambda shape, dtype: tf.zeros([2])}, ValueError, "must give the shape"),
    ],
)
def test_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        EmbeddingVariable("bad", **({"dimension": 3, "capacity": 4} | arguments))


def test_keys_of_another_dtype():
    table, words = variable(), variable(key_dtype="string")
    with pytest.raises(TypeError, match="must be int64, got float32"):
        table.embedding_lookup(tf.constant([1.0]))
    with pytest.raises(TypeError, match="must be int64, got string"):
        table.embedding_lookup(tf.constant(["a"]))
    with pytest.raises(TypeError, match="must be string, got int64"):
        words.embedding_lookup(keys(1))


def test_counts_of_another_length():
    with pytest.raises(tf.errors.InvalidArgumentError, match="counts has 3 elements"):
        variable().embedding_lookup(keys(1, 2), counts=[1, 2, 3])


def test_there_may_be_many_slots_that_do_not_begin_with_zeros():
    slots, slot = Slots(), tf.Variable([0.0])
    assert [slots.add(slot, [[1.0]]) for _ in range(MAX_SLOTS)] == [*range(MAX_SLOTS)]
    assert slots.add(slot, None) is None
    with pytest.raises(NotImplementedError, match=f"is one of more than {MAX_SLOTS} optimizer"):
        slots.add(slot, [[1.0]])
