"""Columns whose ids have no bound: values, training against plain tables, seed 001, errors."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column import serialization

from fusion.feature_column import categorical_column_with_embedding, embedding_column
from fusion.tables import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariable,
    EmbeddingVariableOption,
    InitializerOption,
)
from tests.embedding_variables.plain import rows_of

v1 = tf.compat.v1
fc = tf.feature_column

FUSION = pytest.mark.parametrize("do_fusion", [None, "v1", "v2"])
ROWS, DIM = 30, 4


def option(**arguments):
    return EmbeddingVariableOption(**({"capacity": ROWS, "seed": 3} | arguments))


def initializer():
    return tf.keras.initializers.RandomNormal(seed=5)


def embedding_variable():
    """That of this graph."""
    (table,) = v1.trainable_variables()
    return EmbeddingVariable.of(table)


@pytest.mark.parametrize("partitions", [None, 2])
@FUSION
def test_the_example_of_seed_001(do_fusion, partitions):
    """Its losses, with the default capacity: as many rows as memory may hold."""
    with tf.Graph().as_default():
        column = categorical_column_with_embedding("col_emb", tf.int64, partition_num=partitions)
        weights = embedding_column(
            categorical_column=column,
            dimension=3,
            initializer=v1.ones_initializer(tf.float32),
            do_fusion=do_fusion,
        )
        ids = {
            "col_emb": tf.SparseTensor(
                indices=[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]],
                values=tf.cast([1, 2, 3, 4, 5], tf.int64),
                dense_shape=[5, 4],
            )
        }
        emb = v1.feature_column.input_layer(ids, [weights])
        loss = tf.reduce_sum(tf.multiply(emb, 2.0, name="multiply"), name="reduce_sum")
        opt = v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
        )
        train_op = opt.apply_gradients(opt.compute_gradients(loss))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = [session.run([emb, train_op, loss])[2] for _ in range(3)]
    np.testing.assert_array_equal(losses, np.array([30.0, 19.388391, 17.280207], np.float32))


BATCH = 8


def features(step, dtype=np.int64):
    """Ids [BATCH, 3] of which rows 2 and 5 have none, and their weights."""
    rng = np.random.default_rng(step)
    entries = np.array([(row, k) for row in range(BATCH) if row not in (2, 5) for k in range(3)])
    ids = rng.integers(1, ROWS, len(entries)).astype(dtype)
    weights = rng.uniform(0.5, 2, len(entries)).astype(np.float32)
    shape = [BATCH, 3]
    return v1.SparseTensorValue(entries, ids, shape), v1.SparseTensorValue(entries, weights, shape)


class Run:
    """A column in `input_layer`, its result and loss, and what trains it, in a session."""

    def __init__(self, column, optimizer=None):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
            self.weights = v1.sparse_placeholder(tf.float32, [None, None], name="weights")
            given = {"ids": self.ids, "weights": self.weights}
            self.result = v1.feature_column.input_layer(given, [column])
            factors = tf.cos(tf.range(float(BATCH * DIM)))
            product = tf.reshape(tf.tanh(self.result), [-1]) * factors
            self.loss = tf.reduce_mean((product - 0.25) ** 2)
            self.train = optimizer().minimize(self.loss) if optimizer else tf.no_op()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def __call__(self, fetched, step=0):
        ids, weights = features(step)
        with self.graph.as_default():
            return self.session.run(fetched, {self.ids: ids, self.weights: weights})

    def losses(self, steps):
        return [self([self.loss, self.train], step)[0] for step in range(steps)]

    def known(self, keys):
        """Which keys have a row."""
        with self.graph.as_default():
            rows = rows_of(embedding_variable(), keys)
        return (self.session.run(rows) >= 0).tolist()


def sgd():
    return v1.train.GradientDescentOptimizer(0.5)


#: Stock optimizers of TensorFlow 1. Adam moves rows without a gradient too, but none that never had
#: one, so that it makes no difference when a row begins to be there.
OPTIMIZERS = {
    "sgd": sgd,
    "adagrad": lambda: v1.train.AdagradOptimizer(0.5, initial_accumulator_value=0.3),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.5, l1_regularization_strength=0.01),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.3, 0.9),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.3, 0.9, use_nesterov=True),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.05),
    "rmsprop_centered": lambda: v1.train.RMSPropOptimizer(0.05, centered=True, momentum=0.5),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.5),
    "proximal_adagrad": lambda: v1.train.ProximalAdagradOptimizer(0.5),
}


def initial_table():
    """The rows that keys begin with in a column."""
    table = EmbeddingVariable(
        "any", DIM, capacity=ROWS, seed=3, initializer=initializer(), sample_count=4096
    )
    with tf.GradientTape():
        return table.embedding_lookup(tf.range(ROWS, dtype=tf.int64)).numpy()


def columns_of(do_fusion, is_weighted, **named):
    """A column without a bound, and the stock column with a bound of ROWS."""
    columns = []
    for ids, own in (
        (categorical_column_with_embedding("ids", tf.int64, ev_option=option()), True),
        (fc.categorical_column_with_identity("ids", ROWS), False),
    ):
        weighted = fc.weighted_categorical_column(ids, "weights") if is_weighted else ids
        first = initializer() if own else v1.constant_initializer(initial_table())
        columns.append(
            embedding_column(weighted, DIM, initializer=first, do_fusion=do_fusion, **named)
        )
    return columns


@pytest.mark.parametrize("named", [{}, {"max_norm": 1.5, "combiner": "sqrtn"}, {"combiner": "sum"}])
@pytest.mark.parametrize("is_safe", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
@FUSION
def test_training_has_the_losses_of_a_plain_table(do_fusion, is_weighted, is_safe, named):
    own, plain = columns_of(do_fusion, is_weighted, use_safe_embedding_lookup=is_safe, **named)
    runs = Run(own, sgd), Run(plain, sgd)
    own_losses, losses = (run.losses(8) for run in runs)
    np.testing.assert_array_equal(own_losses, losses)
    assert losses[-1] != losses[0]
    used = {*np.concatenate([features(step)[0].values for step in range(8)]).tolist()}
    assert runs[0].known([*range(ROWS)]) == [key in used for key in range(ROWS)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@FUSION
def test_optimizers_of_tensorflow_1_have_the_losses_of_a_plain_table(name, do_fusion):
    runs = [Run(column, OPTIMIZERS[name]) for column in columns_of(do_fusion, False)]
    own_losses, losses = (run.losses(8) for run in runs)
    np.testing.assert_array_equal(own_losses, losses)
    assert len({*losses}) == 8


@FUSION
def test_slots_of_a_large_table_are_made_on_demand(do_fusion):
    """Slots of 200 million rows of 4 floats would be 3.2 GB each."""
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=option(capacity=200_000_000))
    column = embedding_column(ids, DIM, initializer=initializer(), do_fusion=do_fusion)
    small = columns_of(do_fusion, False)[0]
    for optimizer in ("ftrl", "adagrad"):
        runs = [Run(given, OPTIMIZERS[optimizer]) for given in (column, small)]
        np.testing.assert_array_equal(*[run.losses(3) for run in runs])


@FUSION
def test_inference_inserts_nothing(do_fusion):
    run = Run(columns_of(do_fusion, False)[0])
    assert not run(run.result).any()
    assert not any(run.known([*range(ROWS)]))


@FUSION
def test_admission(do_fusion):
    """A key is seen as often as it is in the batch."""
    filtered = option(filter_option=CounterFilter(filter_freq=2))
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=filtered)
    column = embedding_column(ids, DIM, initializer=initializer(), do_fusion=do_fusion)
    run = Run(column, sgd)
    seen = np.zeros(ROWS, int)
    for step in range(3):
        run(run.train, step)
        np.add.at(seen, features(step)[0].values, 1)
        assert run.known([*range(ROWS)]) == (seen >= 2).tolist()
    assert (seen == 1).any()
    assert (seen >= 2).any()


@FUSION
def test_keys_without_a_row_read_the_default(do_fusion):
    init = InitializerOption(default_value_no_permission=0.5)
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=option(init_option=init))
    run = Run(embedding_column(ids, DIM, do_fusion=do_fusion))
    expected = np.full([BATCH, DIM], 0.5)
    expected[[2, 5]] = 0
    np.testing.assert_array_equal(run(run.result), expected)


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32, tf.string])
@FUSION
def test_features_of_every_dtype(do_fusion, dtype):
    values = [["a", "b", ""], ["b", "", ""]] if dtype == tf.string else [[7, 0, -1], [0, -1, -1]]
    with tf.Graph().as_default(), v1.Session() as session:
        ids = categorical_column_with_embedding("ids", dtype, ev_option=option())
        column = embedding_column(
            ids, DIM, "sum", initializer=v1.ones_initializer(), do_fusion=do_fusion
        )
        result = v1.feature_column.input_layer({"ids": tf.constant(values, dtype)}, [column])
        (gradient,) = tf.gradients(tf.reduce_sum(result), v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        found, rows = session.run([result, gradient.indices])
    np.testing.assert_array_equal(found, [[2] * DIM, [1] * DIM])
    assert {*rows} == {0, 1}


@FUSION
def test_what_is_not_trainable_is_not_trained(do_fusion):
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=option())
    column = embedding_column(ids, DIM, do_fusion=do_fusion, trainable=False)
    with tf.Graph().as_default():
        given = {"ids": tf.constant([[1, 2]], tf.int64)}
        v1.feature_column.input_layer(given, [column])
        assert v1.trainable_variables() == []
        assert len(v1.global_variables()) == 3


@FUSION
def test_partitions_have_the_names_that_tensorflow_gives_them(do_fusion):
    """Also where the partitioner is that of the scope."""
    for count, partitioner in ((2, None), (None, v1.fixed_size_partitioner(2))):
        ids = categorical_column_with_embedding("ids", tf.int64, count, option())
        column = embedding_column(ids, DIM, do_fusion=do_fusion)
        with tf.Graph().as_default():
            with v1.variable_scope("model", partitioner=partitioner):
                v1.feature_column.input_layer({"ids": tf.constant([[1, 2]], tf.int64)}, [column])
            scope = "model/input_layer/ids_embedding/embedding_weights"
            tables = [variable.name for variable in v1.trainable_variables()]
            assert tables == [f"{scope}/part_0:0", f"{scope}/part_1:0"]


@pytest.mark.parametrize("is_weighted", [False, True])
@FUSION
def test_partitions_have_the_losses_of_one_table(do_fusion, is_weighted):
    runs = []
    for count in (None, 3):
        ids = categorical_column_with_embedding("ids", tf.int64, count, option())
        weighted = fc.weighted_categorical_column(ids, "weights") if is_weighted else ids
        column = embedding_column(weighted, DIM, initializer=initializer(), do_fusion=do_fusion)
        runs.append(Run(column, OPTIMIZERS["ftrl"]).losses(6))
    assert len({*runs[0]}) == 6
    assert runs[1] == runs[0]


@FUSION
def test_variables_have_the_names_of_a_stock_column_and_more(do_fusion):
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=option())
    column = embedding_column(ids, DIM, do_fusion=do_fusion)
    with tf.Graph().as_default():
        v1.feature_column.input_layer({"ids": tf.constant([[1, 2]], tf.int64)}, [column])
        scope = "input_layer/ids_embedding/embedding_weights"
        names = [variable.name for variable in v1.global_variables()]
        assert names == [f"{scope}:0", f"{scope}/key_index:0", f"{scope}/initial_rows:0"]
        assert [variable.name for variable in v1.trainable_variables()] == [f"{scope}:0"]


@FUSION
def test_a_layer_that_is_built_again_uses_the_same_variables(do_fusion):
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=option())
    column = embedding_column(ids, DIM, do_fusion=do_fusion)
    layer = v1.make_template(
        "template", lambda given: v1.feature_column.input_layer(given, [column])
    )
    with tf.Graph().as_default():
        for key in (1, 2):
            layer({"ids": tf.constant([[key]], tf.int64)})
        assert len(v1.global_variables()) == 3
        assert embedding_variable() is not None


@FUSION
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_column_is_made_again_of_its_configuration(do_fusion, is_weighted):
    init = InitializerOption(default_value_dim=16, default_value_no_permission=0.5)
    given = option(filter_option=CBFFilter(filter_freq=3), init_option=init)
    ids = categorical_column_with_embedding("ids", tf.string, 3, given)
    if is_weighted:
        ids = fc.weighted_categorical_column(ids, "weights")
    column = embedding_column(ids, DIM, "sum", max_norm=2.0, do_fusion=do_fusion)
    made = serialization.deserialize_feature_column(
        serialization.serialize_feature_column(column),
        custom_objects={"TruncatedNormal": v1.truncated_normal_initializer},
    )
    assert type(made) is type(column)
    assert (made.do_fusion, made.combiner, made.max_norm) == (do_fusion, "sum", 2.0)
    key = made.categorical_column
    if is_weighted:
        assert key.weight_feature_key == "weights"
        key = key.categorical_column
    assert (key.key, key.dtype, key.partition_num) == ("ids", tf.string, 3)
    own = key.ev_option
    assert (own.admission, own.capacity, own.seed, own.init_option) == (3, ROWS, 3, init)


def test_an_initializer_of_an_option_has_no_configuration():
    given = option(init_option=InitializerOption(initializer=v1.ones_initializer()))
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=given)
    with pytest.raises(ValueError, match="give it to the column"):
        serialization.serialize_feature_column(ids)


@FUSION
def test_copies_and_pickles(do_fusion):
    ids = categorical_column_with_embedding("ids", tf.int64, ev_option=option())
    assert pickle.loads(pickle.dumps(ids)) == ids
    column = embedding_column(ids, DIM, initializer=v1.ones_initializer(), do_fusion=do_fusion)
    made = copy.copy(column)
    assert made == column
    assert made.do_fusion == do_fusion
    assert column._replace(combiner="sum").combiner == "sum"
    assert column._replace(combiner="sum").do_fusion == do_fusion


def test_how_examples_are_parsed():
    for dtype, parsed in ((tf.int32, tf.int64), (tf.int64, tf.int64), (tf.string, tf.string)):
        ids = categorical_column_with_embedding("ids", dtype)
        expected = {"ids": tf.io.VarLenFeature(parsed)}
        assert ids.parse_example_spec == expected
        assert embedding_column(ids, DIM).parse_example_spec == expected


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": tf.float32}, ValueError, "dtype must be one of int64, .*, got float32"),
        ({"partition_num": 0}, ValueError, "partition_num must be at least 1, got 0"),
        ({"partition_num": 1.5}, TypeError, "partition_num must be an integer, got 1.5"),
        ({"ev_option": 3}, TypeError, "ev_option must be an EmbeddingVariableOption, got 3"),
    ],
)
def test_arguments_of_the_column(arguments, error, message):
    with pytest.raises(error, match=message):
        categorical_column_with_embedding("ids", **({"dtype": tf.int64} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filter_option": 3}, "filter_option must be CounterFilter or CBFFilter or None, got 3"),
        ({"init_option": None}, "init_option must be InitializerOption, got None"),
    ],
)
def test_arguments_of_options(arguments, message):
    with pytest.raises(TypeError, match=message):
        EmbeddingVariableOption(**arguments)


@FUSION
def test_arguments_of_the_embedding(do_fusion):
    ids = categorical_column_with_embedding("ids", tf.int64)
    with pytest.raises(NotImplementedError, match="ckpt_to_load_from is not supported"):
        embedding_column(
            ids, DIM, ckpt_to_load_from="a", tensor_name_in_ckpt="b", do_fusion=do_fusion
        )
    with pytest.raises(ValueError, match="dimension"):
        embedding_column(ids, 0, do_fusion=do_fusion)


def test_an_unknown_family_of_ops():
    ids = categorical_column_with_embedding("ids", tf.int64)
    with pytest.raises(ValueError, match=r"do_fusion must be .*, got 'v3'"):
        embedding_column(ids, DIM, do_fusion="v3")


@pytest.mark.parametrize("make", [fc.embedding_column, lambda ids, _: fc.indicator_column(ids)])
def test_stock_columns_say_what_to_use(make):
    """They would make a table, or a vector, of as many rows as there are ids."""
    ids = categorical_column_with_embedding("ids", tf.int64)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"use fusion\.feature_column"):
        v1.feature_column.input_layer({"ids": tf.constant([[1]], tf.int64)}, [make(ids, DIM)])


@pytest.mark.parametrize(
    ("dtype", "values"), [(tf.int64, [["a"]]), (tf.int64, [[1.5]]), (tf.string, [[1]])]
)
def test_features_of_another_dtype(dtype, values):
    ids = categorical_column_with_embedding("ids", dtype, ev_option=option())
    column = embedding_column(ids, DIM)
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match=f"feature 'ids' must be of {dtype.name}, got"),
    ):
        v1.feature_column.input_layer({"ids": tf.constant(values)}, [column])
