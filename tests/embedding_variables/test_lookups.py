"""Fused lookups in an embedding variable against the same lookups in a plain table, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.lookup import Lookup, LookupOptions, stock_lookup, trained_lookup
from tests.embedding_variables.plain import by_key, initial_values, keyed, rows_of

v1 = tf.compat.v1

ROWS, DIM, BATCH = 40, 6, 12

#: Functions, and arguments that they always get.
LOOKUPS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "safe_v1": (fusion.fused_safe_embedding_lookup_sparse, {"fusion_version": "v1"}),
    "safe_v2": (fusion.fused_safe_embedding_lookup_sparse, {"fusion_version": "v2"}),
    "plain_v1": (fusion.fused_embedding_lookup_sparse, {}),
    "plain_v2": (fusion.fused_embedding_lookup_sparse_v2, {}),
}


def batch(seed=0, lowest=0, dtype=tf.int64):
    """Ids [BATCH, 5] and their weights; rows 3 and 11 have none, and no id is 0."""
    rng = np.random.default_rng(seed)
    entries = [
        (row, column)
        for row in range(BATCH)
        if row not in (3, 11)
        for column in range(rng.integers(1, 6))
    ]
    values = rng.integers(lowest, ROWS, len(entries))
    values[values == 0] = 1
    ids = tf.SparseTensor(entries, tf.constant(values, dtype), [BATCH, 5])
    weights = rng.uniform(0.5, 2, len(entries)).astype(np.float32)
    return ids, tf.SparseTensor(entries, weights, [BATCH, 5])


def results(params, watched, look_up):
    """What a lookup gives in training, and the gradient of a loss of it."""

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            found = look_up(params)
            factors = tf.cos(tf.range(tf.cast(tf.size(found), found.dtype)))
            loss = tf.reduce_sum(found * tf.reshape(factors, tf.shape(found)))
        return found, tape.gradient(loss, watched)

    found, gradient = run()
    return found.numpy(), tf.convert_to_tensor(gradient).numpy()


def compare(look_up, used, dtype="float32"):
    """Compares a lookup; the keys that are used, and no others, have rows afterwards."""
    table, plain = keyed(DIM, ROWS, dtype), tf.Variable(initial_values(DIM, ROWS, dtype))
    found, gradient = results(table, table.table, look_up)
    expected, expected_gradient = results(plain, plain, look_up)
    np.testing.assert_array_equal(found, expected)
    own, has_row = by_key(table, gradient, ROWS)
    np.testing.assert_array_equal(own, expected_gradient)
    assert np.flatnonzero(has_row).tolist() == sorted({*used})
    # Inference gives the same of keys that have rows.
    for wrap in (lambda function: function, tf.function):
        np.testing.assert_array_equal(wrap(look_up)(table), wrap(look_up)(plain))


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name, combiner, is_weighted, max_norm):
    function, named = LOOKUPS[name]
    ids, weights = batch()
    compare(
        lambda params: function(
            params,
            ids,
            weights if is_weighted else None,
            combiner=combiner,
            max_norm=max_norm,
            **named,
        ),
        ids.values.numpy().tolist(),
    )


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_of_float64_and_int32(name):
    function, named = LOOKUPS[name]
    ids, _ = batch(dtype=tf.int32)
    compare(
        lambda params: function(params, ids, combiner="mean", **named),
        ids.values.numpy().tolist(),
        "float64",
    )


@pytest.mark.parametrize("default_id", [0, 7])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", LOOKUPS)
def test_a_default_id_is_trained_with_empty_rows(name, is_weighted, default_id):
    function, named = LOOKUPS[name]
    ids, weights = batch()
    compare(
        lambda params: function(
            params,
            ids,
            weights if is_weighted else None,
            combiner="sum",
            default_id=default_id,
            **named,
        ),
        [*ids.values.numpy().tolist(), default_id],
    )


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", ["safe_v1", "safe_v2"])
def test_negative_ids_are_dropped_by_safe_lookups(name, is_weighted):
    function, named = LOOKUPS[name]
    ids, weights = batch(lowest=-20)
    used = [key for key in ids.values.numpy().tolist() if key >= 0]
    assert len(used) < len(ids.values)
    compare(
        lambda params: function(
            params, ids, weights if is_weighted else None, combiner="mean", **named
        ),
        used,
    )


@pytest.mark.parametrize("name", ["plain_v1", "plain_v2"])
def test_negative_ids_are_keys_of_plain_lookups(name):
    function, named = LOOKUPS[name]
    ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([-5, 3], tf.int64), [2, 1])
    table = keyed(DIM, ROWS)
    found, _ = results(
        table, table.table, lambda params: function(params, ids, combiner="sum", **named)
    )
    assert rows_of(table, [-5, 3, 0, -4]).numpy().tolist() == [0, 1, -1, -1]
    np.testing.assert_array_equal(found, table.embedding_lookup(ids.values))


@pytest.mark.parametrize("name", LOOKUPS)
def test_ragged_ids(name):
    function, named = LOOKUPS[name]
    sparse, weights = batch()
    rows = sparse.indices[:, 0]
    ids = tf.RaggedTensor.from_value_rowids(sparse.values, rows, BATCH)
    factors = tf.RaggedTensor.from_value_rowids(weights.values, rows, BATCH)
    compare(
        lambda params: function(params, ids, factors, combiner="mean", **named),
        sparse.values.numpy().tolist(),
    )


@pytest.mark.parametrize("name", ["safe_v1", "safe_v2"])
def test_ids_of_rank_three(name):
    function, named = LOOKUPS[name]
    matrix, _ = batch()
    ids = tf.sparse.reshape(matrix, [3, 4, 5])
    compare(
        lambda params: function(params, ids, combiner="mean", **named),
        matrix.values.numpy().tolist(),
    )


@pytest.mark.parametrize("name", LOOKUPS)
def test_no_ids(name):
    function, named = LOOKUPS[name]
    empty = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [4, 2])
    compare(lambda params: function(params, empty, combiner="sum", **named), [])


@pytest.mark.parametrize("name", LOOKUPS)
def test_counts_of_entries_admit(name):
    """An id that is three times in a batch is seen three times."""
    function, named = LOOKUPS[name]
    values = tf.constant([8, 9, 8, 9, 8, 7], tf.int64)
    ids = tf.SparseTensor([[k // 2, k % 2] for k in range(6)], values, [3, 2])
    table = keyed(DIM, ROWS, admission=3)
    found, gradient = results(
        table, table.table, lambda params: function(params, ids, combiner="sum", **named)
    )
    assert rows_of(table, [8, 9, 7]).numpy().tolist() == [0, -1, -1]
    np.testing.assert_array_equal(found, table.table.numpy()[[0, 0, 0]])
    assert gradient[0].all()
    assert not gradient[1:].any()
    results(table, table.table, lambda params: function(params, ids, combiner="sum", **named))
    assert rows_of(table, [8, 9, 7]).numpy().tolist() == [0, 1, -1]


@pytest.mark.parametrize("name", LOOKUPS)
def test_an_embedding_variable_has_no_shards(name):
    function, named = LOOKUPS[name]
    table, (ids, _) = keyed(DIM, ROWS), batch()
    compare(lambda params: function([params], ids, combiner="sum", **named), ids.values.numpy())
    with pytest.raises(NotImplementedError, match="must be one EmbeddingVariable, not 2 shards"):
        function([table, table], ids, combiner="sum", **named)
    with pytest.raises(NotImplementedError, match="must be one EmbeddingVariable, not 2 shards"):
        function([tf.zeros([ROWS, DIM]), table], ids, combiner="sum", **named)


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("is_safe", [False, True])
def test_lookups_by_stock_ops(is_safe, combiner, is_weighted, max_norm):
    """Against stock's own functions."""
    ids, weights = batch(lowest=-20 if is_safe else 0)
    weights = weights if is_weighted else None
    stock = tf.nn.safe_embedding_lookup_sparse if is_safe else tf.nn.embedding_lookup_sparse

    def look_up(params):
        if isinstance(params, tf.Variable):
            return stock(params, ids, weights, combiner=combiner, max_norm=max_norm)
        return stock_lookup(params, ids, weights, combiner, max_norm, is_safe)

    compare(look_up, [key for key in ids.values.numpy().tolist() if key >= 0])


def two_columns(params, max_norm=None):
    """Lookups that share ops: of weighted and of plain ids."""
    ids, weights = batch(1)
    other, _ = batch(2)
    options = LookupOptions(combiner="mean", max_norm=max_norm)
    return [
        Lookup(params, ids, weights, options, "weighted"),
        Lookup(params, other, None, options, "plain"),
        tf.ones([BATCH, 2], tf.float32),
    ]


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_grouped_lookups(max_norm):
    used = itertools.chain(*(batch(k)[0].values.numpy().tolist() for k in (1, 2)))
    compare(lambda params: trained_lookup(two_columns(params, max_norm)), used)


def test_grouped_lookups_admit():
    values = tf.constant([8, 9, 8, 9, 8, 7], tf.int64)
    ids = tf.SparseTensor([[k // 2, k % 2] for k in range(6)], values, [3, 2])
    other = tf.SparseTensor([[0, 0], [2, 0]], tf.constant([5, 6], tf.int64), [3, 1])
    tables = keyed(DIM, ROWS, admission=3), keyed(DIM, ROWS, admission=2)
    options = LookupOptions(combiner="sum")
    columns = [
        Lookup(table, some, None, options) for table, some in zip(tables, (ids, other), strict=True)
    ]
    for _ in range(2):
        with tf.GradientTape():
            trained_lookup(columns)
    assert rows_of(tables[0], [8, 9, 7]).numpy().tolist() == [0, 1, -1]
    assert rows_of(tables[1], [5, 6]).numpy().tolist() == [0, 1]


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.3),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.3, initial_accumulator_value=0.1),
}


def losses(name, optimizer, is_keyed, is_weighted):
    """The losses of twelve steps of a model with a lookup, and the rows of all keys after them."""
    function, named = LOOKUPS[name]
    start, batches = initial_values(DIM, ROWS), [batch_of(step) for step in range(12)]
    with tf.Graph().as_default(), v1.Session() as session:
        table = keyed(DIM, ROWS) if is_keyed else tf.Variable(start)
        ids, weights = v1.sparse_placeholder(tf.int64), v1.sparse_placeholder(tf.float32)
        found = function(
            table, ids, weights if is_weighted else None, combiner="mean", max_norm=2.0, **named
        )
        dense = tf.Variable(tf.cos(tf.range(float(DIM))))
        logits = tf.linalg.matvec(tf.tanh(found), dense)
        loss = tf.reduce_mean((logits - tf.range(float(BATCH))) ** 2)
        train = OPTIMIZERS[optimizer]().minimize(loss)
        every = table.embedding_lookup(tf.range(ROWS, dtype=tf.int64)) if is_keyed else table
        session.run(v1.global_variables_initializer())
        result = []
        for some, factors in batches:
            result.append(session.run([loss, train], {ids: some, weights: factors})[0])
        return np.array(result), session.run(every)


def batch_of(step):
    """Ids and weights as numbers."""
    return tuple(
        v1.SparseTensorValue(t.indices.numpy(), t.values.numpy(), t.dense_shape.numpy())
        for t in batch(step)
    )


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", LOOKUPS)
def test_training_has_the_losses_of_a_plain_table(name, optimizer, is_weighted):
    own, rows = losses(name, optimizer, True, is_weighted)
    expected, expected_rows = losses(name, optimizer, False, is_weighted)
    np.testing.assert_array_equal(own, expected)
    used = np.unique(np.concatenate([batch_of(step)[0].values for step in range(12)]))
    assert 0 not in used
    assert not rows[0].any()
    np.testing.assert_array_equal(rows[used], expected_rows[used])
    assert own[-1] < own[0]
