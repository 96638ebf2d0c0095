"""Columns of embedding variables that share an op, against plain tables and ops of their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.lookup import Lookup, LookupOptions, grouped, grouped_lookup, trained_lookup
from fusion.schema.row_formats import pack_rows, unpack_rows
from tests.embedding_variables.plain import by_key, initial_values, keyed, rows_of

v1 = tf.compat.v1

ROWS, DIM, BATCH = 40, 6, 12
INVALID, EXHAUSTED = tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError

BEFORE, WHOLE = "GroupedKeyedEmbeddingPreLookUp", "GroupedKeyedEmbeddingLookup"


@pytest.fixture
def apart(monkeypatch):
    """Has every embedding variable gathered from by an op of its own."""
    return lambda: monkeypatch.setattr(grouped, "read_keyed", lambda columns: {})


def ids_of(form, seed=0, dtype=tf.int64, lowest=0):
    """Ids of 12 rows, of which two have none, if the form has such; 0 is none of them."""
    rng = np.random.default_rng(seed)
    lengths = [0 if row in (3, 11) else int(rng.integers(1, 6)) for row in range(BATCH)]
    values = rng.integers(lowest, ROWS, sum(lengths))
    values[values == 0] = 1
    if form == "dense":
        return tf.constant(np.resize(values, [BATCH, 3]), dtype)
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(values, dtype), lengths)
    if form == "ragged":
        return ragged
    sparse = ragged.to_sparse()
    if form == "sparse":
        return sparse
    order = rng.permutation(len(values))
    indices, shuffled = tf.gather(sparse.indices, order), tf.gather(sparse.values, order)
    return tf.SparseTensor(indices, shuffled, sparse.dense_shape)


def values_of(ids):
    return (ids if isinstance(ids, tf.Tensor) else ids.values).numpy().ravel()


FORMS = ("sparse", "shuffled", "ragged", "dense")


def run(look_up, watched):
    """What training gives: the result, the loss and the gradients."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            found = look_up()
            factors = tf.cos(tf.range(tf.cast(tf.size(found), found.dtype)))
            loss = tf.reduce_sum(found * tf.reshape(factors, tf.shape(found)))
        return found, loss, tape.gradient(loss, watched)

    found, loss, gradients = step()
    dense = [None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients]
    return found.numpy(), loss.numpy(), dense


def compare(columns_of, ids, dtype="float32"):
    """Compares columns of three tables with those of plain ones.

    Args:
      columns_of: tables -> columns, of each table one at least.
      ids: those of each table.
    """
    tables = [keyed(DIM, ROWS, dtype) for _ in range(3)]
    plain = [tf.Variable(initial_values(DIM, ROWS, dtype)) for _ in range(3)]
    own = run(lambda: trained_lookup(columns_of(tables)), [table.table for table in tables])
    expected = run(lambda: trained_lookup(columns_of(plain)), plain)
    np.testing.assert_array_equal(own[0], expected[0])
    np.testing.assert_array_equal(own[1], expected[1])
    for table, of_table, of_plain, used in zip(tables, own[2], expected[2], ids, strict=True):
        by_id, has_row = by_key(table, of_table, ROWS)
        np.testing.assert_array_equal(by_id, of_plain)
        assert np.flatnonzero(has_row).tolist() == sorted({*used.tolist()} - {0})
    for find in (trained_lookup, grouped_lookup):
        for wrap in (lambda function: function, tf.function):
            found = wrap(lambda tables, find=find: find(columns_of(tables)))
            np.testing.assert_array_equal(found(tables), found(plain))


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("form", FORMS)
def test_columns_have_the_bits_of_plain_tables(form, combiner, max_norm):
    ids = [ids_of(form, seed) for seed in range(3)]
    options = LookupOptions(combiner=combiner, max_norm=max_norm)

    def columns(tables):
        found = [Lookup(t, some, None, options) for t, some in zip(tables, ids, strict=True)]
        return [found[0], tf.ones([BATCH, 2]), *found[1:]]

    compare(columns, [values_of(some) for some in ids])


@pytest.mark.parametrize("default_id", [None, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weighted_int32_and_pruned(dtype, default_id):
    ids = [ids_of("sparse", seed, tf.int32, lowest=-20) for seed in range(3)]
    weights = [
        tf.constant(np.random.default_rng(k).uniform(0.5, 2, some.values.shape[0]), dtype)
        for k, some in enumerate(ids)
    ]
    options = LookupOptions(combiner="mean", default_id=default_id)

    def columns(tables):
        zipped = zip(tables, ids, weights, strict=True)
        return [Lookup(t, some, w, options) for t, some, w in zipped]

    more = [] if default_id is None else [default_id]
    used = [np.append(some.values[some.values >= 0], more).astype(int) for some in ids]
    compare(columns, used, dtype)


def test_empty_columns():
    none = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [BATCH, 3])
    some = ids_of("sparse")
    options = LookupOptions(combiner="sum")

    def columns(tables):
        ids = (none, some, none)
        return [Lookup(t, i, None, options) for t, i in zip(tables, ids, strict=True)]

    compare(columns, [np.array([]), values_of(some), np.array([])])


def test_a_batch_without_rows():
    ids = tf.zeros([0, 2], tf.int64)
    columns = [Lookup(keyed(DIM, ROWS), ids, None, LookupOptions()) for _ in range(2)]
    for find in (trained_lookup, grouped_lookup):
        assert find(columns).shape == (0, 2 * DIM)


def mixed(tables, plain, options=None):
    """Columns of embedding variables, plain tables and a matrix, in turn."""
    options = options or LookupOptions(combiner="mean")
    a, b = tables
    return [
        Lookup(plain, ids_of("sparse", 1), None, options, "first"),
        Lookup(a, ids_of("ragged", 2), None, options, "second"),
        tf.ones([BATCH, 2]),
        Lookup(plain, ids_of("dense", 3), None, options, "third"),
        Lookup(b, ids_of("shuffled", 4), None, options, "fourth"),
    ]


def test_plain_and_keyed_columns_in_one_group():
    table = tf.Variable(tf.random.normal([ROWS, DIM]))
    tables, plain = [keyed(DIM, ROWS) for _ in range(2)], tf.Variable(initial_values(DIM, ROWS))
    own = run(lambda: trained_lookup(mixed(tables, table)), [table])
    expected = run(lambda: trained_lookup(mixed([plain, plain], table)), [table])
    np.testing.assert_array_equal(own[0], expected[0])
    np.testing.assert_array_equal(own[2][0], expected[2][0])
    for find in (trained_lookup, grouped_lookup):
        found = find(mixed(tables, table))
        np.testing.assert_array_equal(found, find(mixed([plain, plain], table)))


@pytest.mark.parametrize(("find", "name"), [(trained_lookup, BEFORE), (grouped_lookup, WHOLE)])
def test_all_columns_of_embedding_variables_are_in_one_op(find, name):
    tables, table = [keyed(DIM, ROWS) for _ in range(2)], tf.Variable(tf.zeros([ROWS, DIM]))
    graph = tf.function(lambda: find(mixed(tables, table))).get_concrete_function().graph
    found = [op.type for op in graph.get_operations() if "Embedding" in op.type]
    assert found.count(name) == 1
    assert "KeyedEmbeddingGather" not in found


def entries_of(table):
    """Counts and steps by key."""
    found = ops.embedding_key_entries(index=table.index.handle)
    lists = (found.keys.numpy(), found.counts.numpy(), found.steps.numpy())
    return {key: rest for key, *rest in zip(*(each.tolist() for each in lists), strict=True)}


@pytest.mark.parametrize("admission", [1, 3])
@pytest.mark.parametrize("wrap", [lambda function: function, tf.function])
def test_keys_are_seen_as_often_as_by_ops_of_their_own(wrap, admission, apart):
    def trained():
        tables = [keyed(DIM, ROWS, admission=admission) for _ in range(2)]
        results = []
        for number in range(3):
            columns = [
                Lookup(table, ids_of("sparse", 5 * number + k), None, LookupOptions())
                for k, table in enumerate(tables)
            ]

            def step(columns=columns):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(trained_lookup(columns))
                tape.gradient(loss, [table.table for table in tables])
                return loss

            results.append(float(wrap(step)()))
        return results, [entries_of(table) for table in tables]

    own = trained()
    assert all(count >= admission for _, (count, step) in own[1][0].items() if step >= 0)
    apart()
    assert own == trained()


def test_a_table_can_have_several_columns(apart):
    ids, options = [ids_of("sparse", seed) for seed in range(3)], LookupOptions(combiner="sum")

    def trained():
        table = keyed(DIM, ROWS)
        columns = [Lookup(table, some, None, options) for some in ids]
        found, loss, (gradient,) = run(lambda: trained_lookup(columns), [table.table])
        return found, loss, by_key(table, gradient, ROWS), grouped_lookup(columns).numpy()

    own = trained()
    apart()
    for one, other in zip(tf.nest.flatten(own), tf.nest.flatten(trained()), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function])
def test_a_frozen_column_beside_a_trained_one_gets_no_rows(wrap):
    frozen, trained = keyed(DIM, ROWS), keyed(DIM, ROWS)
    frozen.is_trained = lambda: False
    columns = [Lookup(t, ids_of("sparse"), None, LookupOptions()) for t in (frozen, trained)]

    def step(find):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(find(columns))
        return tape.gradient(loss, [frozen.table, trained.table])

    for find in (trained_lookup, grouped_lookup):
        of_frozen, of_trained = wrap(lambda find=find: step(find))()
        assert of_frozen is None
        assert of_trained.values.shape[0] > 0
    assert not entries_of(frozen)
    assert len(entries_of(trained)) == len({*values_of(ids_of("sparse"))})


def test_a_table_that_no_tape_watches_gets_no_rows():
    aside, trained = keyed(DIM, ROWS), keyed(DIM, ROWS)
    columns = [Lookup(t, ids_of("sparse"), None, LookupOptions()) for t in (aside, trained)]

    @tf.function
    def step():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained.table)
            loss = tf.reduce_sum(trained_lookup(columns))
        return tape.gradient(loss, [trained.table])

    step()
    assert entries_of(trained)
    assert not entries_of(aside)


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function])
@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_gradient_of_inference_gives_rows_to_keys(is_weighted, max_norm, wrap):
    table, plain = keyed(DIM, ROWS), tf.Variable(initial_values(DIM, ROWS))
    beside = tf.Variable(tf.ones([ROWS, 2]))
    ids = ids_of("sparse")
    weights = tf.cos(tf.range(float(ids.values.shape[0]))) + 2
    options = LookupOptions(combiner="mean", max_norm=max_norm)

    def step(params):
        columns = [
            Lookup(beside, ids, None, options),
            Lookup(params, ids, weights if is_weighted else None, options),
        ]
        watched = [getattr(params, "table", params), beside]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            found = grouped_lookup(columns)
            loss = tf.reduce_sum(found * tf.cos(tf.range(float(DIM + 2))))
        gradients = tape.gradient(loss, [*watched, weights])
        return found, gradients

    def dense(gradients):
        return [None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients]

    found, gradients = wrap(lambda: step(table))()
    expected, of_plain = wrap(lambda: step(plain))()
    np.testing.assert_array_equal(found, expected)
    (own, *rest), (expected_own, *expected_rest) = dense(gradients), dense(of_plain)
    by_id, has_row = by_key(table, own, ROWS)
    np.testing.assert_allclose(by_id, expected_own, rtol=1e-6, atol=1e-7)
    assert {*np.flatnonzero(has_row)} == {*values_of(ids)}
    for one, other in zip(rest, expected_rest, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_threads_give_what_ops_of_their_own_give(apart):
    """So many keys that all threads find, gather and add them."""
    rng = np.random.default_rng(0)
    ids = [tf.constant(rng.integers(1, 60_000, [9000, 2])) for _ in range(3)]
    options = LookupOptions(combiner="sum")

    def trained():
        tables = [keyed(DIM, 60_000) for _ in ids]
        columns = [Lookup(t, i, None, options) for t, i in zip(tables, ids, strict=True)]
        found, loss, gradients = run(
            lambda: trained_lookup(columns), [table.table for table in tables]
        )
        inferred = grouped_lookup(columns).numpy()
        np.testing.assert_array_equal(inferred, found)
        return (
            found,
            loss,
            [
                by_key(table, gradient, 60_000)[0]
                for table, gradient in zip(tables, gradients, strict=True)
            ],
        )

    own = trained()
    apart()
    for one, other in zip(tf.nest.flatten(own), tf.nest.flatten(trained()), strict=True):
        np.testing.assert_array_equal(one, other)


def test_threads_that_train_and_infer_at_once():
    """In groups of other orders, while tables are assigned: nobody waits forever."""
    tables = [keyed(DIM, 2000) for _ in range(3)]
    errors: list[BaseException] = []

    def work(number):
        try:
            rng = np.random.default_rng(number)
            for _ in range(30):
                some = tf.constant(rng.integers(1, 2000, [500, 2]))
                order = rng.permutation(3)
                columns = [Lookup(tables[k], some, None, LookupOptions()) for k in order]
                with tf.GradientTape():
                    trained = trained_lookup(columns).numpy()
                np.testing.assert_array_equal(grouped_lookup(columns), trained)
                tables[order[0]].initial.assign(tables[order[0]].initial)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors


def test_a_key_without_room_is_an_error_that_names_its_column():
    tables = keyed(DIM, ROWS), keyed(DIM, 2)
    columns = [
        Lookup(table, ids_of("dense"), None, LookupOptions(), name)
        for table, name in zip(tables, ("wide", "narrow"), strict=True)
    ]
    with (
        tf.GradientTape(),
        pytest.raises(EXHAUSTED, match=r"column 1 .*narrow.*: there is no room"),
    ):
        trained_lookup(columns)
    assert grouped_lookup(columns).shape == (BATCH, 2 * DIM)


@pytest.mark.parametrize("find", [trained_lookup, grouped_lookup])
def test_what_does_not_belong_together_is_an_error_that_names_its_column(find):
    tables = keyed(DIM, ROWS), keyed(DIM, ROWS)
    columns = [
        Lookup(table, ids_of("dense"), None, LookupOptions(), name)
        for table, name in zip(tables, ("right", "wrong"), strict=True)
    ]
    index, initial = tables[1].index, tables[1].initial
    tables[1].index = keyed(DIM, ROWS + 1).index
    with pytest.raises(INVALID, match=r"column 1 .*wrong.*: the variable has 960 bytes, but"):
        find(columns)
    with tables[1].beside():
        others = tf.Variable(tf.zeros([2000], tf.float64)), tf.Variable(tf.zeros([1, DIM]))
    tables[1].index = others[0]
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"column 1 .*wrong.*: index has no"
    ):
        find(columns)
    tables[1].index, tables[1].initial = index, others[1]
    with pytest.raises(INVALID, match=r"column 1 .*wrong.*: initial has 24 bytes"):
        find(columns)
    tables[1].initial = initial
    find(columns)


@pytest.mark.parametrize("find", [trained_lookup, grouped_lookup])
def test_a_negative_key_that_is_not_pruned_is_an_error(find):
    ids = tf.constant([[3, -1]], tf.int64)
    columns = [Lookup(keyed(DIM, ROWS), ids, None, LookupOptions(prune=False), "signed")]
    with pytest.raises(INVALID, match=r"column 0 .*signed.*indices\[1\] = -1 is negative"):
        find(columns)


def test_strings_are_no_keys_of_integers():
    table = keyed(DIM, ROWS, key_dtype=tf.string)
    columns = [Lookup(table, ids_of("dense"), None, LookupOptions())]
    for find in (trained_lookup, grouped_lookup):
        with pytest.raises(TypeError, match=r"keys of .* must be string, got int64"):
            find(columns)


def _arguments(tables=None, **changes):
    """Those of the op for inference, of two columns."""
    tables = tables or [keyed(DIM, ROWS) for _ in range(2)]
    ids = tf.constant([[3], [4]], tf.int64)
    columns = [Lookup(table, ids, None, LookupOptions()) for table in tables]
    given = {}

    def note(**arguments):
        given.update(arguments)
        return tf.zeros([2, 2 * DIM])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "grouped_keyed_embedding_lookup", note)
        grouped_lookup(columns)
    return given | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keyed": [True, False]}, "num_keyed is 2, but keyed has 1 columns"),
        ({"keyed": [True]}, "keyed and is_training have 1 and 2 items for 2 columns"),
        ({"dims": [DIM, -1]}, "column 1: the dim of an embedding variable must be at least 1"),
        ({"forms": ["dense", "copy"]}, "column 1: an embedding variable needs sum_order segment"),
        ({"wrap_negatives": [True, False]}, "column 0: wrap_negative does not go with"),
        (
            {"row_formats": ["plain", "int8"], "Tpacked": "uint8"},
            "column 1: an embedding variable has row_format plain",
        ),
    ],
)
def test_attrs_that_make_no_sense_are_refused(changes, message):
    assert ops.grouped_keyed_embedding_lookup(**_arguments()).shape == (2, 2 * DIM)
    with pytest.raises(INVALID, match=message):
        ops.grouped_keyed_embedding_lookup(**_arguments(**changes))


def test_tables_beside_may_have_packed_rows():
    variable = keyed(DIM, ROWS)
    table = pack_rows(np.random.default_rng(0).normal(size=(ROWS, DIM)), "int8")
    given = _arguments([variable, tf.constant(unpack_rows(table, "int8", DIM))])
    expected = ops.grouped_keyed_embedding_lookup(**given)
    given |= {"tables": [given["tables"][0], table], "Tpacked": "uint8"}
    found = ops.grouped_keyed_embedding_lookup(**given | {"row_formats": ["plain", "int8"]})
    assert found.numpy().tobytes() == expected.numpy().tobytes()


def test_slots_of_v1_graphs_are_filled_before_gradients():
    """As of columns with gathers of their own."""

    def losses(is_apart):
        with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default(), v1.Session() as run:
            if is_apart:
                patch.setattr(grouped, "read_keyed", lambda columns: {})
            tables = [keyed(DIM, ROWS) for _ in range(2)]
            ids = v1.placeholder(tf.int64, [None, 2])
            columns = [Lookup(table, ids, None, LookupOptions()) for table in tables]
            loss = tf.reduce_mean((trained_lookup(columns) - 1) ** 2)
            train = v1.train.AdagradOptimizer(0.3, initial_accumulator_value=0.1).minimize(loss)
            run.run(v1.global_variables_initializer())
            batches = [[[k % 4 + 1, 5], [6, k % 3 + 7]] for k in range(12)]
            return [run.run([loss, train], {ids: some})[0] for some in batches]

    own = losses(False)
    assert own == losses(True)
    assert own[-1] < own[0]


def test_tables_of_several_devices_have_ops_of_their_own(apart):
    """Those of the device with the most share one."""
    tables = [keyed(DIM, ROWS) for _ in range(3)]
    columns = [Lookup(table, ids_of("sparse"), None, LookupOptions()) for table in tables]
    run(lambda: trained_lookup(columns), [table.table for table in tables])
    expected = grouped_lookup(columns).numpy()
    kind = type(tables[0])
    with pytest.MonkeyPatch.context() as patch:
        places = {id(tables[0]): "/cpu:1"}
        patch.setattr(kind, "device", property(lambda own: places.get(id(own), "/cpu:0")))
        graph = tf.function(lambda: grouped_lookup(columns)).get_concrete_function()
        found = [op.type for op in graph.graph.get_operations() if "Keyed" in op.type]
        assert sorted(found) == [BEFORE, "KeyedEmbeddingGather"]
    np.testing.assert_array_equal(graph(), expected)


def test_rows_are_those_of_the_op_for_one_table():
    table = keyed(DIM, ROWS)
    columns = [Lookup(table, ids_of("sparse"), None, LookupOptions())]
    with tf.GradientTape():
        trained_lookup(columns)
    keys = np.unique(values_of(ids_of("sparse")))
    assert (rows_of(table, keys).numpy() >= 0).all()
