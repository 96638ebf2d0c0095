"""Partitioned embedding variables against those without partitions, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import EmbeddingVariable, ops
from fusion.lookup import Lookup, LookupOptions, stock_lookup, trained_lookup
from fusion.tables import (
    EmbeddingVariableOption,
    GlobalStepEvict,
    LeastFrequent,
    PartitionedEmbeddingVariable,
)
from tests.embedding_variables.plain import keyed, rows_of
from tests.embedding_variables.test_lookups import LOOKUPS, batch

v1 = tf.compat.v1

DIM, CAPACITY = 6, 200
COUNTS = (1, 2, 3, 7)
KEYS = [*range(-12, 30), 999, 1000, 1001, -999, -1000, -1001, 2**63 - 1, -(2**63), 7, 7, 7]


def partitioned(count: int, dtype: str = "float32", **arguments: Any):
    """As `keyed`, in partitions."""
    initializer = tf.keras.initializers.RandomNormal(seed=5)
    arguments = {"initializer": initializer, "seed": 11, "capacity": CAPACITY} | arguments
    return PartitionedEmbeddingVariable("keyed", DIM, count, dtype, **arguments)


def both(count: int, **arguments: Any):
    """A table without partitions, and one with."""
    return keyed(DIM, CAPACITY, **arguments), partitioned(count, **arguments)


def tables_of(table: Any) -> list[Any]:
    return [table.table] if isinstance(table, EmbeddingVariable) else table.tables


def partitions_of(table: Any) -> list[EmbeddingVariable]:
    return [table] if isinstance(table, EmbeddingVariable) else table.partitions


def by_key(table: Any, gradients: list[Any], keys: Any) -> np.ndarray:
    """The sum of the gradients of each key's row, zeros where it has none."""
    result = np.zeros([len(keys), table.dimension], table.dtype.as_numpy_dtype)
    for partition, gradient in zip(partitions_of(table), gradients, strict=True):
        assert isinstance(gradient, tf.IndexedSlices)
        dense, rows = tf.convert_to_tensor(gradient).numpy(), rows_of(partition, keys).numpy()
        result += np.where(rows[:, None] >= 0, dense[rows], 0)
    return result


def trained(table: Any, look_up: Any, wrap: Any = tf.function) -> tuple[np.ndarray, list[Any]]:
    """What a lookup gives in training, and the gradients of a loss of it."""

    @wrap
    def run():
        with tf.GradientTape() as tape:
            found = look_up(table)
            factors = tf.cos(tf.range(tf.cast(tf.size(found), found.dtype)))
            loss = tf.reduce_sum(found * tf.reshape(factors, tf.shape(found)))
        return found, tape.gradient(loss, tables_of(table))

    found, gradients = run()
    return found.numpy(), gradients


def compare(tables: Any, look_up: Any, keys: Any, wrap: Any = tf.function) -> None:
    """The same values, gradients and keys, in training and in inference."""
    (expected, wanted), (found, gradients) = (trained(table, look_up, wrap) for table in tables)
    np.testing.assert_array_equal(found, expected)
    of_keys = [by_key(t, g, keys) for t, g in zip(tables, (wanted, gradients), strict=True)]
    np.testing.assert_array_equal(of_keys[1], of_keys[0])
    assert of_keys[0].any() == bool(len(keys))
    np.testing.assert_array_equal(look_up(tables[1]), look_up(tables[0]))


def entries(table: Any) -> dict[int, tuple[bool, int, int]]:
    """Of each key whether it has a row, how often it was seen, and when for the last time."""
    result = {}
    for partition in partitions_of(table):
        found = ops.embedding_key_entries(index=partition.index.handle)
        parts = (found.keys, found.rows >= 0, found.counts, found.steps)
        for key, *values in zip(*(part.numpy().tolist() for part in parts), strict=True):
            assert key not in result
            result[key] = tuple(values)
    return result


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("count", COUNTS)
def test_rows_and_gradients(count, wrap):
    tables, keys = both(count), tf.constant(KEYS, tf.int64)
    compare(tables, lambda table: table.embedding_lookup(keys), sorted({*KEYS}), wrap)
    assert entries(tables[1]) == entries(tables[0])
    assert entries(tables[1]).keys() == {*KEYS}


@pytest.mark.parametrize("count", [2, 3, 7, 1000])
def test_a_key_is_in_the_partition_of_its_last_digits(count):
    """As Python computes it, and as the op of the contract does."""
    rng = np.random.default_rng(0)
    keys = np.array([*KEYS, *rng.integers(-(2**63), 2**63, 200, np.int64)])
    expected = [int(key) % 1000 % count for key in keys]
    shape = tf.constant([9, 9], tf.int64)
    split = ops.partition_with_permutation(
        input=tf.constant(keys), partition_shapes=[shape] * count, partition_strategy="mod_ev"
    )
    assert split.partition_permutation[:, 0].numpy().tolist() == expected
    if count > 7:
        return
    table = partitioned(count, capacity=1000)
    for number, partition in enumerate(table.partitions):
        assert [expected[k] == number for k in range(len(keys))] == (
            partition.partition.is_of(tf.constant(keys)).numpy().tolist()
        )
    with tf.GradientTape():
        table.embedding_lookup(tf.constant(keys))
    for number, partition in enumerate(table.partitions):
        own = {int(key) for key, of in zip(keys, expected, strict=True) if of == number}
        assert entries(partition).keys() == own


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name, count, is_weighted):
    function, named = LOOKUPS[name]
    ids, weights = batch(lowest=-20)
    is_pruned = name.startswith("safe")
    keys = [key for key in {*ids.values.numpy().tolist()} if key >= 0 or not is_pruned]
    for arguments in ({"max_norm": 0.1}, {"default_id": 7}):
        compare(
            both(count),
            lambda table, arguments=arguments: function(
                table, ids, weights if is_weighted else None, combiner="mean", **arguments, **named
            ),
            sorted(keys),
        )


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_of_float64_and_int32(name):
    function, named = LOOKUPS[name]
    ids, _ = batch(dtype=tf.int32)
    compare(
        (keyed(DIM, CAPACITY, "float64"), partitioned(3, "float64")),
        lambda table: function(table, ids, max_norm=0.3, **named),
        sorted({*ids.values.numpy().tolist()}),
    )


@pytest.mark.parametrize("is_safe", [False, True])
def test_lookups_by_stock_ops(is_safe):
    ids, weights = batch()
    keys = sorted({*ids.values.numpy().tolist()})
    compare(both(3), lambda t: stock_lookup(t, ids, weights, "mean", None, is_safe), keys)


def test_grouped_lookups():
    (ids, weights), (other, _) = batch(1), batch(2)
    options = LookupOptions(combiner="mean")

    def look_up(table):
        columns = Lookup(table, ids, weights, options), Lookup(table, other, None, options)
        return trained_lookup(columns)

    keys = sorted({*ids.values.numpy().tolist(), *other.values.numpy().tolist()})
    compare(both(3), look_up, keys)


def test_no_keys():
    compare(both(3), lambda table: table.embedding_lookup(tf.zeros([0, 2], tf.int64)), [])


@pytest.mark.parametrize("name", LOOKUPS)
def test_counts_of_entries_admit(name):
    function, named = LOOKUPS[name]
    values = tf.constant([8, 9, 8, 9, 8, 7], tf.int64)
    ids = tf.SparseTensor([[k // 2, k % 2] for k in range(6)], values, [3, 2])
    tables = both(3, admission=3)
    for _ in range(2):
        compare(tables, lambda table: function(table, ids, **named), [7, 8, 9])
        assert entries(tables[1]) == entries(tables[0])
    assert {k for k, (has_row, *_) in entries(tables[1]).items() if has_row} == {8, 9}


def test_string_keys_and_a_default_value():
    names = tf.constant([[f"key{k}" for k in range(20)], ["key3"] * 20])
    tables = both(3, key_dtype=tf.string, default_value=2.5)
    assert (tables[1].embedding_lookup(names).numpy() == 2.5).all()
    found = [trained(table, lambda t: t.embedding_lookup(names))[0] for table in tables]
    np.testing.assert_array_equal(found[1], found[0])
    frozen = tables[1].freeze().embedding_lookup(tf.constant(["key3", "unknown"])).numpy()
    np.testing.assert_array_equal(frozen, [found[1][0, 3], [2.5] * DIM])


def test_new_rows_begin_alike_in_all_partitions_whatever_the_initializer_gives():
    table = partitioned(4, initializer=tf.keras.initializers.RandomNormal(), seed=None)
    first, *others = [partition.initial.numpy() for partition in table.partitions]
    assert np.unique(first).size > 1000
    for other in others:
        np.testing.assert_array_equal(other, first)
    named = PartitionedEmbeddingVariable("name", 3, 2, capacity=9)
    plain = EmbeddingVariable("name", 3, capacity=9)
    compare((plain, named), lambda t: t.embedding_lookup(tf.range(5)), range(5))


@pytest.mark.parametrize("optimizer", ["GradientDescentOptimizer", "AdagradOptimizer"])
def test_training_in_a_graph_has_the_same_losses(optimizer):
    losses = {count: graph_losses(count, getattr(v1.train, optimizer)) for count in (None, *COUNTS)}
    assert len({*losses[None]}) == 5
    assert all(found == losses[None] for found in losses.values())


def graph_losses(count: int | None, optimizer: Any) -> list[float]:
    values = [batch(step, lowest=-30)[0] for step in range(5)]
    feeds = [
        v1.SparseTensorValue(*(part.numpy() for part in (x.indices, x.values, x.dense_shape)))
        for x in values
    ]
    with tf.Graph().as_default(), v1.Session() as session:
        table = fusion.get_embedding_variable(
            "table",
            DIM,
            partitioner=count and v1.fixed_size_partitioner(count),
            ev_option=EmbeddingVariableOption(capacity=CAPACITY, seed=3),
        )
        ids = v1.sparse_placeholder(tf.int64)
        rows = fusion.fused_embedding_lookup_sparse_v2(table, ids)
        loss = tf.reduce_mean((tf.tanh(rows) - 0.2) ** 2)
        train = optimizer(0.5).minimize(loss)
        session.run(v1.global_variables_initializer())
        return [float(session.run([loss, train], {ids: feed})[0]) for feed in feeds]


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "LazyAdam"])
def test_training_with_keras_has_the_same_losses(optimizer):
    losses = []
    for table in (keyed(DIM, CAPACITY), partitioned(2), partitioned(7)):
        tables = tables_of(table)
        made = (
            tf.keras.optimizers.SGD(0.3)
            if optimizer == "SGD"
            else getattr(fusion.optimizers, optimizer)(0.3)
        )
        made.build(tables)

        @tf.function
        def step(keys, table=table, tables=tables, made=made):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf.tanh(table.embedding_lookup(keys)) - 0.2) ** 2)
            made.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))
            return loss

        rng = np.random.default_rng(0)
        losses.append([float(step(tf.constant(rng.integers(-40, 40, 9)))) for _ in range(6)])
    assert len({*losses[0]}) == 6
    assert losses[1] == losses[0]
    assert losses[2] == losses[0]


def test_what_is_not_trained():
    table = partitioned(3)
    table.is_trained = lambda: False
    with tf.GradientTape():
        table.embedding_lookup(tf.range(9, dtype=tf.int64))
    assert entries(table) == {}
    assert [variable.name for variable in table.trainable_variables] == [
        f"keyed/part_{number}:0" for number in range(3)
    ]


def test_eviction_is_of_the_whole():
    """A partition that gets no keys any more grows old with the others."""
    tables = both(2, eviction=GlobalStepEvict(2))
    for keys in ([1, 2, 3], [2], [4], [6], [8, 1]):
        for table in tables:
            with tf.GradientTape():
                table.embedding_lookup(tf.constant(keys, tf.int64))
    assert [int(table.evict()) for table in tables] == [2, 2]
    assert entries(tables[1]) == entries(tables[0])
    assert entries(tables[1]).keys() == {1, 4, 6, 8}


def test_each_partition_keeps_its_share():
    table = partitioned(3, eviction=LeastFrequent(7))
    for _ in range(2):
        with tf.GradientTape():
            table.embedding_lookup(tf.range(30, dtype=tf.int64))
    assert int(table.evict()) == 30 - 9
    assert [len(entries(partition)) for partition in table.partitions] == [3, 3, 3]
    assert [part.keys for part in table.statistics()] == [3, 3, 3]


def test_capacity_is_split_with_room_to_spare():
    table = partitioned(4, capacity=1000)
    assert table.capacity == 1000
    assert [partition.capacity for partition in table.partitions] == [250 + 62 + 64] * 4
    assert partitioned(4, capacity=50).partitions[0].capacity == 50
    with pytest.raises(tf.errors.ResourceExhaustedError, match="capacity of 376 rows"):
        trained(table, lambda t: t.embedding_lookup(4 * tf.range(400, dtype=tf.int64)))


def test_files(tmp_path: Path):
    plain, first = both(3)
    for table in (plain, first):
        trained(table, lambda t: t.embedding_lookup(tf.constant(KEYS, tf.int64)))
    assert first.export(tmp_path / "all") == plain.export(tmp_path / "plain") == len({*KEYS})
    for table in (plain, first):
        trained(table, lambda t: t.embedding_lookup(tf.constant([5, 6, 77], tf.int64)))
    assert first.delta(tmp_path / "delta", 2) == 3
    second = partitioned(5)
    assert second.import_from(tmp_path / "all") == len({*KEYS})
    assert second.apply_delta(tmp_path / "delta") == 3
    keys = tf.constant([*KEYS, 77, 78], tf.int64)
    np.testing.assert_array_equal(second.embedding_lookup(keys), plain.embedding_lookup(keys))
    assert {*entries(second)} == {*KEYS, 77}
    np.testing.assert_array_equal(
        first.freeze().embedding_lookup(keys), plain.embedding_lookup(keys)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"partition_count": 0}, ValueError, "partition_count must be at least 1, got 0"),
        ({"partition_count": 1001}, ValueError, "partition_count must be at most 1000, got 1001"),
        ({"partition_count": 1.5}, TypeError, "partition_count must be an integer, got 1.5"),
        ({"tables": []}, ValueError, "tables must be 2, one of each partition, got 0"),
        ({"capacity": 0}, ValueError, "capacity must be at least 1, got 0"),
        ({"capacity": "x"}, TypeError, "capacity must be an integer, got 'x'"),
        ({"eviction": 3}, TypeError, "eviction must be None or one of"),
        ({"key_dtype": tf.float32}, TypeError, "key_dtype must be one of"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_arguments_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        PartitionedEmbeddingVariable(
            **({"name": "x", "dimension": 2, "partition_count": 2} | arguments)
        )


@pytest.mark.parametrize(
    ("partitioner", "error", "message"),
    [
        (3, TypeError, "partitioner must be callable, got 3"),
        (lambda **_: [1, 2], ValueError, r"must give \[partitions, 1\], got \[1, 2\]"),
        (lambda **_: [2000, 1], ValueError, "partitioner must be at most 1000, got 2000"),
    ],
)
def test_partitioners_that_cannot_be(partitioner, error, message):
    with pytest.raises(error, match=message):
        fusion.get_embedding_variable("x", 2, partitioner=partitioner)


def test_keys_of_another_dtype_and_no_eviction_are_errors():
    table = partitioned(2)
    with pytest.raises(TypeError, match="must be int64, got string"):
        table.embedding_lookup(tf.constant(["a"]))
    with pytest.raises(ValueError, match="has no eviction"):
        table.evict()


def test_partitions_are_no_list_of_tables():
    """Such a list would be split like tables by rows."""
    table, (ids, _) = partitioned(2), batch()
    with pytest.raises(NotImplementedError, match="must be one EmbeddingVariable, not 2 shards"):
        fusion.fused_embedding_lookup_sparse_v2(table.partitions, ids)


def test_get_embedding_variable_takes_the_partitioner_of_a_scope():
    with tf.Graph().as_default():
        with v1.variable_scope("scope", partitioner=v1.fixed_size_partitioner(2)):
            table = fusion.get_embedding_variable("table", 3)
            assert isinstance(v1.get_variable("other", [4, 3]), type(v1.get_variable("o", [4, 3])))
        with v1.variable_scope("scope", reuse=True):
            again = fusion.get_embedding_variable("table", 3, partitioner=lambda **_: [2, 1])
        assert again is table
        names = [f"scope/table/part_{number}:0" for number in range(2)]
        assert [variable.name for variable in table.tables] == names
        assert len(v1.get_variable_scope().global_variables()) == 10


@pytest.mark.parametrize("count", [None, 4])
def test_a_replica_device_setter_spreads_partitions_and_what_is_theirs(count):
    setter = v1.train.replica_device_setter(ps_tasks=3)
    with tf.Graph().as_default() as graph, v1.device(setter):
        table = fusion.get_embedding_variable(
            "table",
            3,
            partitioner=count and v1.fixed_size_partitioner(count),
            ev_option=EmbeddingVariableOption(capacity=90),
        )
        after = v1.get_variable("after", [1])
        loss = tf.reduce_sum(table.embedding_lookup(tf.constant([1, 2], tf.int64)))
        v1.train.FtrlOptimizer(0.1).minimize(loss)
        v1.train.Saver()
        servers = [f"/job:ps/task:{number % 3}" for number in range((count or 1) + 1)]
        assert after.device == servers.pop()
        for partition, server in zip(partitions_of(table), servers, strict=True):
            variables = [partition.table, partition.index, partition.initial, *partition.slots]
            assert [variable.device for variable in variables] == [server] * 5
        for op in graph.get_operations():
            for variable in op.inputs:
                if variable.dtype == tf.resource and op.type.startswith(("Keyed", "Embedding")):
                    assert op.device == variable.op.device, op.name
        gathers = [op.device for op in graph.get_operations() if op.type == "KeyedEmbeddingGather"]
        assert gathers == servers
