"""`ShardedEmbeddingVariable` in one process, of one replica and of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import EmbeddingVariable
from fusion.distribute import ShardedEmbeddingVariable, ShardedTable, dump, load
from fusion.distribute.rows import _packed, _unpacked
from fusion.optimizers import keras3
from fusion.tables import EmbeddingVariableOption, GlobalStepEvict, LeastFrequent
from fusion.tables.deeprec import CounterFilter
from tests.distribute.test_dumps import in_replicas
from tests.embedding_variables.test_partitions import entries, tables_of

DIM = 3
OPTIONS: dict[str, Any] = {"capacity": 200, "seed": 3}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.3),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.3),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "LazyAdam": lambda: keras3.LazyAdam(0.1),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a table: an `EmbeddingVariable` for 0 replicas."""

    def make(replicas: int, name: str = "table", **options: Any) -> Any:
        options = OPTIONS | options
        if replicas == 0:
            return EmbeddingVariable(name, DIM, **options)
        with in_replicas(monkeypatch, replicas):
            return ShardedEmbeddingVariable(name, DIM, **options)

    return make


def ragged(seed: int, dtype: tf.DType = tf.int64) -> tf.RaggedTensor:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 60, n).tolist() for n in rng.integers(0, 5, 16)]
    return tf.ragged.constant(ids, dtype)


def train(table: Any, optimizer: Any, steps: range) -> list[float]:
    """The losses of steps, after each of which keys are forgotten."""
    tables = tables_of(table)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.RaggedTensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            found = fusion.lookup_sparse(table, ids, combiners="sum")
            loss = tf.reduce_sum((tf.tanh(found) - 0.2) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))
        return loss

    losses = []
    for number in steps:
        losses.append(float(step(ragged(number))))
        if table.eviction is not None:
            table.evict()
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", [{"admission": 2}, {"eviction": GlobalStepEvict(1)}])
@pytest.mark.parametrize("replicas", [1, 3])
def test_losses_are_those_of_an_embedding_variable(
    made, replicas: int, options: dict[str, Any], name: str
):
    """With a filter or eviction; and the same is noted of all keys."""
    plain, table = made(0, **options), made(replicas, **options)
    expected = train(plain, OPTIMIZERS[name](), range(6))
    np.testing.assert_allclose(train(table, OPTIMIZERS[name](), range(6)), expected, rtol=1e-6)
    assert entries(table) == entries(plain)
    with_row = [has_row for has_row, *_ in entries(plain).values()]
    seen = {int(key) for step in range(6) for key in ragged(step).flat_values}
    assert 0 < sum(with_row) < len(seen)


@pytest.mark.parametrize("name", ["Adagrad", "LazyAdam"])
def test_checkpoints_go_on_with_any_number(made, name: str, tmp_path: Path):
    """2 replicas, then an embedding variable, 3 replicas, and one, with slots."""
    expected = train(made(0, admission=2), OPTIMIZERS[name](), range(8))
    losses, path = [], ""
    for number, replicas in enumerate((2, 0, 3, 1)):
        table, optimizer = made(replicas, admission=2), OPTIMIZERS[name]()
        optimizer.build(tables_of(table))
        checkpoint = tf.train.Checkpoint(table=table, optimizer=optimizer)
        if path:
            train(table, optimizer, range(20, 22))  # rows and slots are not as they were
            checkpoint.read(path).assert_existing_objects_matched()
        losses += train(table, optimizer, range(2 * number, 2 * number + 2))
        path = checkpoint.write(f"{tmp_path}/{number}")
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.parametrize("replicas", [1, 3])
def test_lookups_are_those_of_an_embedding_variable(made, replicas: int):
    plain, table = made(0), made(replicas)
    keys = tf.constant([[-1, 5, 5], [2**40, 7, -(2**63)], [1, 2, 3]], tf.int64)
    ids = ragged(1).to_sparse()
    weights = ids.with_values(tf.linspace(0.5, 1.5, ids.values.shape[0]))

    def results(of: Any) -> list[tf.Tensor]:
        return [
            of.embedding_lookup(keys),
            fusion.lookup_sparse(of, ids, weights, "sqrtn"),
            fusion.lookup_sparse(of, ragged(1, tf.int32)),
            fusion.slots_lookup(of, tf.maximum(keys, -1)[:, tf.newaxis], "sum"),
            fusion.fused_safe_embedding_lookup_sparse(of, ids, weights),
            fusion.fused_embedding_lookup_sparse(of, ids),
        ]

    for _ in range(2):  # of the default, and of rows
        for found, expected in zip(results(table), results(plain), strict=True):
            np.testing.assert_array_equal(found, expected)
        with tf.GradientTape(), tf.GradientTape():
            results(table), results(plain)
    assert np.any(results(table)[0])


def test_strings(made):
    plain, table = made(0, key_dtype=tf.string), made(2, key_dtype=tf.string)
    words = tf.constant([["a", "b"], ["c", "a"]])
    with tf.GradientTape():
        expected = plain.embedding_lookup(words)
    with tf.GradientTape():
        np.testing.assert_array_equal(table.embedding_lookup(words), expected)
    np.testing.assert_array_equal(table.embedding_lookup(words), expected)


def test_tables_of_both_kinds_come_together(made, monkeypatch: pytest.MonkeyPatch):
    with in_replicas(monkeypatch, 2):
        keyed = ShardedEmbeddingVariable("keyed", DIM, admission=2, **OPTIONS)
        table = ShardedTable(60, 5, name="rows")
    shards = [*keyed.shards.values(), *table.shards.values()]
    ids = ragged(4)
    with tf.GradientTape() as tape:
        found = fusion.lookup_sparse([keyed, table], [ids, ids], combiners="sum")
        gradients = tape.gradient(found, shards)
    seen = np.bincount(ids.flat_values)
    for number, gradient in enumerate(gradients):
        own = seen[number % 2 :: 2] > (1 if number < 2 else 0)  # of keys, those that get a row
        assert gradient.values.shape[0] == np.count_nonzero(own)


def test_counts_are_sent_where_they_matter(made):
    keys = tf.constant([4, 4, 5, 7, 4], tf.int64)
    for admission, counts in ((1, [[], []]), (2, [[[3]], [[1, 1]]])):
        requests, places = made(2, admission=admission).split(keys)
        assert [ids.numpy().tolist() for ids, *_ in requests] == [[4], [5, 7]]
        assert [[n.numpy().tolist() for n in numbers] for _, *numbers in requests] == counts
        assert places.numpy().tolist() == [0, 0, 1, 2, 0]


def test_requests_are_one_message():
    requests = [
        (tf.constant([2**40, -1], tf.int64), tf.constant([3, 4])),
        (tf.zeros([0], tf.int32),),
        (tf.constant([7, 8, 9]),),
    ]
    dtypes = [[vector.dtype for vector in request] for request in requests]
    message = _packed(requests)
    assert message.shape == [2 * 3 + 3]
    found = _unpacked(message, tf.constant([2, 0, 3]), dtypes)
    for got, request in zip(found, requests, strict=True):
        for vector, expected in zip(got, request, strict=True):
            np.testing.assert_array_equal(vector, expected)


@pytest.mark.parametrize("format", ["hugectr", "sok"])
def test_files(made, format: str, tmp_path: Path):
    table, other = made(3), made(2, seed=8)
    keys = tf.range(20, dtype=tf.int64)
    with tf.GradientTape():
        rows = table.embedding_lookup(keys)
    (name,) = dump(tmp_path / "dumped", table, format)
    assert load(tmp_path / "dumped", {name: other}) == {name: 20}
    np.testing.assert_array_equal(other.embedding_lookup(keys), rows)
    third = made(2, seed=9)
    table.export(tmp_path / "exported")
    third.import_from(tmp_path / "exported")
    np.testing.assert_array_equal(third.embedding_lookup(keys), rows)
    np.testing.assert_array_equal(third.freeze().embedding_lookup(keys), rows)


def test_the_options_of_deeprec(monkeypatch: pytest.MonkeyPatch):
    option = EmbeddingVariableOption(CounterFilter(3), LeastFrequent(7), capacity=100)
    with in_replicas(monkeypatch, 2):
        table = ShardedEmbeddingVariable("table", 4, **option.arguments(None))
    assert (table.admission, table.capacity) == (3, 100)
    assert [part.eviction for part in table.partitions] == [LeastFrequent(4)] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dimension": 0}, ValueError, "dimension must be at least 1, got 0"),
        ({"dtype": "int32"}, TypeError, "dtype must be one of"),
        ({"key_dtype": tf.float32}, TypeError, "key_dtype must be one of"),
        ({"capacity": 0}, ValueError, "capacity must be at least 1, got 0"),
        ({"eviction": 3}, TypeError, "eviction must be None or one of"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_arguments_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        ShardedEmbeddingVariable(**{"name": "x", "dimension": 2} | arguments)


def test_ids_that_cannot_be(made):
    table = made(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table must be from 0 .* has -2"):
        fusion.lookup_sparse(table, tf.ragged.constant([[1, -2]]))
    with pytest.raises(TypeError, match="sp_ids"):
        fusion.lookup_sparse(table, tf.ragged.constant([[1.5]]))
    with pytest.raises(TypeError, match="keys of table must be int64, got string"):
        table.embedding_lookup(tf.constant(["a"]))
    with pytest.raises(TypeError, match="keys of words must be string, got int64"):
        fusion.lookup_sparse(made(2, "words", key_dtype=tf.string), ragged(0))


def test_strategies_that_cannot_be(made):
    one = made(1)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        other = ShardedTable(60, DIM)
        with pytest.raises(ValueError, match=r"'table'.*another strategy than MirroredStrategy"):
            fusion.lookup_sparse(one, ragged(0))
    with pytest.raises(ValueError, match="scopes of different strategies"):
        fusion.lookup_sparse([one, other], [ragged(0), ragged(1)])
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"])
    with strategy.scope(), pytest.raises(NotImplementedError, match="CentralStorageStrategy"):
        ShardedEmbeddingVariable("x", 2)


def test_what_one_of_several_processes_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with in_replicas(monkeypatch, 2, range(1, 2)):
        table = ShardedEmbeddingVariable("users", DIM, **OPTIONS)
    assert [*table.shards] == [1]
    calls = [
        (lambda: table.export(tmp_path / "a"), "'users'.* 2 processes"),
        (lambda: table.delta(tmp_path / "a", 0), "'users'.* 2 processes"),
        (table.freeze, "'users'.* 2 processes"),
        (lambda: dump(tmp_path / "c", table), "'users'.* several processes"),
    ]
    for call, message in calls:
        with pytest.raises(NotImplementedError, match=message):
            call()
    with pytest.raises(ValueError, match=r"'users' has rows in 2 processes.*`strategy\.run`"):
        table.embedding_lookup([1])
    whole = EmbeddingVariable("users", DIM, **OPTIONS)
    with tf.GradientTape():
        rows = whole.embedding_lookup([1, 2, 3])
    path = tf.train.Checkpoint(table=whole).write(str(tmp_path / "d"))
    tf.train.Checkpoint(table=table).read(path)
    assert {*entries(table)} == {1, 3}  # its own
    np.testing.assert_array_equal(table.partitions[0].embedding_lookup([1, 3]), rows[::2])
