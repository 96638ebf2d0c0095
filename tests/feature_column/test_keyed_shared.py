"""Columns whose ids have no bound and that share a table, in graphs; see also `..._layers`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.feature_column import (
    categorical_column_with_embedding,
    shared_embedding_columns,
    shared_embeddings,
)
from fusion.optimizers import LazyAdamOptimizer
from fusion.tables import CounterFilter, EmbeddingVariableOption
from tests.embedding_variables.plain import rows_of
from tests.feature_column.test_keyed import (
    BATCH,
    DIM,
    FUSION,
    OPTIMIZERS,
    ROWS,
    embedding_variable,
    features,
    initial_table,
    initializer,
    option,
    sgd,
)

v1 = tf.compat.v1
fc = tf.feature_column

#: The layer that takes columns of each function.
HOSTS = {
    shared_embedding_columns: v1.feature_column.input_layer,
    shared_embeddings: lambda given, columns: tf_keras.layers.DenseFeatures(columns)(given),
}
SHARING = pytest.mark.parametrize("sharing", HOSTS, ids=lambda function: function.__name__)
NAMES = ("a", "b", "c")
STEPS = 4


def keyed(name, count=None, dtype=tf.int64, **arguments):
    return categorical_column_with_embedding(name, dtype, count, option(**arguments))


def plain(name):
    return fc.categorical_column_with_identity(name, ROWS)


def weighted(make):
    """Columns of which the second has weights."""

    def column(name):
        made = make(name)
        return fc.weighted_categorical_column(made, f"{name}_weights") if name == "b" else made

    return column


class Run:
    """Columns that share a table, what their layer gives and its loss, and what trains them."""

    def __init__(self, sharing, make, do_fusion, optimizer=None, first=initializer, **named):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.given = {}
            for name in NAMES:
                self.given[name] = v1.sparse_placeholder(tf.int64, [None, None])
                self.given[f"{name}_weights"] = v1.sparse_placeholder(tf.float32, [None, None])
            arguments = {"initializer": first(), "do_fusion": do_fusion, **named}
            columns = sharing([make(name) for name in NAMES], DIM, **arguments)
            self.result = HOSTS[sharing](self.given, columns)
            factors = tf.cos(tf.range(float(BATCH * DIM * len(NAMES))))
            product = tf.reshape(tf.tanh(self.result), [-1]) * factors
            self.loss = tf.reduce_mean((product - 0.25) ** 2)
            self.train = optimizer().minimize(self.loss) if optimizer else tf.no_op()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def __call__(self, fetched, step=0):
        feed: dict[Any, Any] = {}
        for number, name in enumerate(NAMES):
            ids, weights = features(len(NAMES) * step + number)
            feed |= {self.given[name]: ids, self.given[f"{name}_weights"]: weights}
        with self.graph.as_default():
            return self.session.run(fetched, feed)

    def losses(self, steps=range(STEPS)):
        return [self([self.loss, self.train], step)[0] for step in steps]

    def known(self):
        """Which keys have a row."""
        with self.graph.as_default():
            rows = rows_of(embedding_variable(), [*range(ROWS)])
        return (self.session.run(rows) >= 0).tolist()


def times_seen(steps):
    """How often each key is in all columns."""
    seen = np.zeros(ROWS, int)
    for number in range(len(NAMES) * steps):
        np.add.at(seen, features(number)[0].values, 1)
    return seen


def of_plain_table(sharing, make, do_fusion, optimizer, **named):
    """A run of ordinary columns whose table begins as that of keys."""
    first = v1.constant_initializer(initial_table())
    return Run(sharing, make, do_fusion, optimizer, lambda: first, **named)


@pytest.mark.parametrize(
    "named",
    [{}, {"max_norm": 1.5, "combiner": "sqrtn"}, {"use_safe_embedding_lookup": False}],
    ids=str,
)
@SHARING
@FUSION
def test_training_has_the_losses_of_a_plain_table(do_fusion, sharing, named):
    run = Run(sharing, weighted(keyed), do_fusion, sgd, **named)
    losses = of_plain_table(sharing, weighted(plain), do_fusion, sgd, **named).losses()
    np.testing.assert_array_equal(run.losses(), losses)
    assert len({*losses}) == STEPS
    assert run.known() == (times_seen(STEPS) > 0).tolist()


@pytest.mark.parametrize("name", ["adagrad", "momentum", "lazy_adam"])
@SHARING
@FUSION
def test_optimizers_have_the_losses_of_a_plain_table(do_fusion, sharing, name):
    optimizer = (OPTIMIZERS | {"lazy_adam": lambda: LazyAdamOptimizer(0.1)})[name]
    losses = of_plain_table(sharing, plain, do_fusion, optimizer).losses()
    np.testing.assert_array_equal(Run(sharing, keyed, do_fusion, optimizer).losses(), losses)
    assert len({*losses}) == STEPS


@SHARING
@FUSION
def test_partitions_have_the_losses_of_one_table(do_fusion, sharing):
    adagrad = OPTIMIZERS["adagrad"]
    losses = Run(sharing, keyed, do_fusion, adagrad).losses()
    run = Run(sharing, lambda name: keyed(name, 2), do_fusion, adagrad)
    assert run.losses() == losses
    with run.graph.as_default():
        names = [variable.name for variable in v1.trainable_variables()]
    assert [name.rpartition("/")[2] for name in names] == ["part_0:0", "part_1:0"]


@SHARING
@FUSION
def test_the_partitioner_of_a_scope_makes_partitions(do_fusion, sharing):
    with tf.Graph().as_default():
        given = {name: tf.constant([[1]], tf.int64) for name in "ab"}
        columns = sharing([keyed(name) for name in "ab"], DIM, do_fusion=do_fusion)
        with v1.variable_scope("model", partitioner=v1.fixed_size_partitioner(2)):
            HOSTS[sharing](given, columns)
        assert len(v1.trainable_variables()) == 2


@SHARING
@FUSION
def test_there_is_one_table(do_fusion, sharing):
    for make in (keyed, plain):
        run = Run(sharing, make, do_fusion)
        with run.graph.as_default():
            (table,) = v1.trainable_variables()
            others = [v.name for v in v1.global_variables() if v is not table]
        name = "a_b_c_shared_embedding"
        if sharing is shared_embedding_columns:
            name = f"input_layer/{name}/embedding_weights"
        assert table.name == f"{name}:0"
        parts = ("key_index", "initial_rows") if make is keyed else ()
        assert others == [f"{name}/{part}:0" for part in parts]


@SHARING
@FUSION
def test_a_key_is_seen_by_all_columns(do_fusion, sharing):
    """And gets its row by what they have seen together."""
    frequency = 4

    def make(name):
        return keyed(name, filter_option=CounterFilter(frequency))

    run = Run(sharing, make, do_fusion, sgd)
    for step in range(2):
        run(run.train, step)
        seen = times_seen(step + 1)
        assert run.known() == (seen >= frequency).tolist()
        assert 0 < np.sum(seen >= frequency) < np.sum(seen > 0)


@SHARING
@FUSION
def test_inference_inserts_nothing(do_fusion, sharing):
    run = Run(sharing, keyed, do_fusion)
    assert not run(run.result).any()
    assert not any(run.known())


@SHARING
@FUSION
def test_what_is_not_trainable_is_not_trained(do_fusion, sharing):
    run = Run(sharing, keyed, do_fusion, trainable=False)
    with run.graph.as_default():
        assert v1.trainable_variables() == []
        assert len(v1.global_variables()) == 3


def test_a_layer_that_is_not_trained():
    with tf.Graph().as_default():
        columns = shared_embedding_columns([keyed(name) for name in "ab"], DIM)
        given = {name: tf.constant([[1]], tf.int64) for name in "ab"}
        v1.feature_column.input_layer(given, columns, ["mine"], trainable=False)
        assert v1.trainable_variables() == []
        assert len(v1.get_collection("mine")) == 1


@pytest.mark.parametrize("count", [None, 2])
@SHARING
def test_the_saver_saves_the_table_once(sharing, count, tmp_path):
    """With its slot, and restores them into another graph that goes on as this one."""
    adagrad = OPTIMIZERS["adagrad"]
    one, other = (Run(sharing, lambda n: keyed(n, count), "v2", adagrad) for _ in range(2))
    one.losses(range(2))
    other.losses(range(5, 6))
    with one.graph.as_default():
        path = v1.train.Saver().save(one.session, str(tmp_path / "save"))
    names = [name for name, _ in tf.train.list_variables(path) if name.endswith("/keys")]
    assert len(names) == 2  # of the table and of its slot
    with other.graph.as_default():
        v1.train.Saver().restore(other.session, path)
    assert other.losses(range(2, 4)) == one.losses(range(2, 4))


@pytest.mark.parametrize("count", [None, 2])
@FUSION
def test_a_layer_that_is_built_again_has_the_same_table(do_fusion, count):
    with tf.Graph().as_default(), v1.variable_scope("scope") as scope:
        given = {name: tf.constant([[number]], tf.int64) for number, name in enumerate("ab")}
        columns = shared_embedding_columns(
            [keyed(n, count) for n in "ab"], DIM, do_fusion=do_fusion
        )
        v1.feature_column.input_layer(given, columns)
        made = v1.global_variables()
        v1.feature_column.input_layer(given, columns)
        with v1.variable_scope(scope, reuse=True):
            v1.feature_column.input_layer(given, columns)
        template = v1.make_template("other", v1.feature_column.input_layer, feature_columns=columns)
        for _ in range(2):
            template(given)
        assert v1.global_variables() == made


@FUSION
def test_linear_model(do_fusion):
    """Which takes embedding columns as numbers."""
    results = []
    for make in (keyed, plain):
        first = initializer() if make is keyed else v1.constant_initializer(initial_table())
        with tf.Graph().as_default(), v1.Session() as session:
            columns = shared_embedding_columns(
                [make(name) for name in "ab"], DIM, initializer=first, do_fusion=do_fusion
            )
            given = {name: tf.constant([[1, 2], [3, -1]], tf.int64) for name in "ab"}
            found = v1.feature_column.linear_model(given, columns)
            train = sgd().minimize(tf.reduce_mean((found - 1.0) ** 2))
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(train)
            results.append(session.run(found))
    np.testing.assert_array_equal(*results)
    assert results[0].any()


def test_an_option_is_compared_by_what_it_says():
    options = [EmbeddingVariableOption(capacity=9) for _ in range(2)]
    with tf.Graph().as_default():
        ids = [
            categorical_column_with_embedding(n, tf.int64, ev_option=o)
            for n, o in zip("ab", options, strict=True)
        ]
        assert len(shared_embeddings(ids, DIM)) == 2


@SHARING
@FUSION
def test_fields(do_fusion, sharing):
    with tf.Graph().as_default():
        first, second = sharing([keyed("a"), keyed("b")], DIM, do_fusion=do_fusion)
    assert first != second
    assert first == copy.copy(first) == first._replace(do_fusion=do_fusion)
    assert first.do_fusion == do_fusion
    assert first._replace(combiner="sum").combiner == "sum"
    assert first.name == "a_shared_embedding"
