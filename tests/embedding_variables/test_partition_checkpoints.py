"""Checkpoints of partitioned embedding variables, into other numbers of partitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion import EmbeddingVariable
from fusion.optimizers import keras3 as ours
from fusion.optimizers import tf_keras as ours_of_tf_keras
from fusion.tables import EmbeddingVariableOption, GlobalStepEvict, PartitionedEmbeddingVariable
from tests.embedding_variables.test_partitions import entries, tables_of

v1 = tf.compat.v1

DIM = 3
KEYS = tf.range(-60, 60, dtype=tf.int64)
#: None is a table without partitions.
COUNTS = (None, 3, 2, 5)


def made(count: int | None, seed: int | None = 3, **arguments: Any) -> Any:
    arguments = {"capacity": 150, "seed": seed} | arguments
    if count is None:
        return EmbeddingVariable("table", DIM, **arguments)
    return PartitionedEmbeddingVariable("table", DIM, count, **arguments)


def train(table: Any, optimizer: Any, steps: range, traced: bool = False) -> list[float]:
    """The losses of steps of some keys each; to trace one takes longer than to run a few."""
    tables = tables_of(table)

    def step(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.tanh(table.embedding_lookup(keys)) - 0.2) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))
        return loss

    run = tf.function(step) if traced else step
    keys = (np.random.default_rng(k).integers(-60, 60, 20) for k in steps)
    return [float(run(tf.constant(some))) for some in keys]


def sgd() -> Any:
    return tf.keras.optimizers.SGD(0.3)


@pytest.mark.parametrize("admission", [1, 3])
def test_a_table_goes_on_in_any_number_of_partitions(tmp_path: Path, admission):
    """3 -> 2 -> 5 partitions and none: as the one that is not restored at all."""
    reference = made(None, admission=admission)
    expected = train(reference, sgd(), range(8), traced=True)
    losses, path = [], ""
    for number, count in enumerate((3, 2, 5, None)):
        table = made(count, admission=admission)
        if path:
            tf.train.Checkpoint(table=table).read(path)
        losses += train(table, sgd(), range(2 * number, 2 * number + 2), traced=True)
        path = tf.train.Checkpoint(table=table).write(f"{tmp_path}/{number}")
    assert losses == expected
    seen = [{k: v[:2] for k, v in entries(x).items()} for x in (table, reference)]
    assert seen[0] == seen[1]
    assert sum(has_row for has_row, _ in seen[0].values()) > 10


def test_restored_rows_are_the_same_and_new_ones_begin_alike(tmp_path: Path):
    for saved, restored in itertools.product(COUNTS, COUNTS):
        first, second = made(saved), made(restored)
        train(first, sgd(), range(3))
        train(second, sgd(), range(5, 7))
        path = tf.train.Checkpoint(table=first).write(f"{tmp_path}/{saved}-{restored}")
        status = tf.train.Checkpoint(table=second).read(path)
        if saved == restored:
            status.assert_consumed()
        np.testing.assert_array_equal(
            second.embedding_lookup(KEYS), first.embedding_lookup(KEYS), f"{saved} {restored}"
        )
        assert entries(second) == entries(first)
        assert train(second, sgd(), range(5, 8)) == train(first, sgd(), range(5, 8))


def test_what_new_rows_begin_with_is_restored_in_all_partitions(tmp_path: Path):
    random = tf.keras.initializers.RandomNormal
    first = made(2, initializer=random(), default_value=1.5)
    second = made(5, initializer=random())
    path = tf.train.Checkpoint(table=first).write(f"{tmp_path}/save")
    tf.train.Checkpoint(table=second).read(path)
    assert train(second, sgd(), range(3)) == train(first, sgd(), range(3))


def test_a_checkpoint_of_more_keys_than_there_is_room_for_or_of_other_rows(tmp_path: Path):
    first = made(3)
    train(first, sgd(), range(9))
    path = tf.train.Checkpoint(table=first).write(f"{tmp_path}/save")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="room"):
        tf.train.Checkpoint(table=made(2, capacity=20)).read(path)
    other = PartitionedEmbeddingVariable("table", DIM + 1, 2, capacity=150)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=r"dimension|shape"):
        tf.train.Checkpoint(table=other).read(path)
    assert entries(other) == {}


def test_a_save_evicts_in_all_partitions(tmp_path: Path):
    tables = made(None, eviction=GlobalStepEvict(1)), made(3, eviction=GlobalStepEvict(1))
    for table in tables:
        train(table, sgd(), range(4))
        tf.train.Checkpoint(table=table).write(f"{tmp_path}/save")
    assert entries(tables[1]) == entries(tables[0])


def sample_optimizers() -> dict[str, Callable[[], Any]]:
    """Of all packages, with slots that begin with zeros, others, and several of a table."""
    stock, other = tf.keras.optimizers, tf_keras.optimizers
    return {
        "ours": lambda: ours.LazyAdam(0.1),
        "ours, of tf_keras": lambda: ours_of_tf_keras.Adagrad(0.1),
        "Keras 3": lambda: stock.Adam(0.1),
        "Keras 3, one slot": lambda: stock.Adagrad(0.1),
        "tf_keras": lambda: other.Adam(0.1),
        "tf_keras legacy": lambda: other.legacy.Adam(0.1),
    }


def train_model(table: Any, dense: Any, optimizer: Any, steps: range) -> list[float]:
    """The losses of steps of a table with a dense part after it, in the optimizer's lists, too."""
    variables = [*tables_of(table), dense]

    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.tanh(table.embedding_lookup(keys) * dense) - 0.2) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    keys = (np.random.default_rng(k).integers(-60, 60, 20) for k in steps)
    return [float(step(tf.constant(some))) for some in keys]


@pytest.mark.parametrize("name", sample_optimizers())
def test_slots_go_on_in_any_number_of_partitions(tmp_path: Path, name: str):
    """Restored before the optimizer is built, which a function does, and after it."""

    def start(count: int | None) -> tuple[tuple[Any, Any, Any], Any]:
        optimizer, dense = sample_optimizers()[name](), tf.Variable(tf.ones([DIM]), name="dense")
        table = made(count)
        saved = tf.train.Checkpoint(optimizer=optimizer, table=table, dense=dense)
        return (table, dense, optimizer), saved

    model, _ = start(None)
    expected = train_model(*model, range(10))
    model, checkpoint = start(3)
    losses = train_model(*model, range(2))
    for number, (count, is_built) in enumerate(
        [(2, False), (5, True), (None, False), (2, True)], 1
    ):
        path = checkpoint.save(f"{tmp_path}/{number}")
        model, checkpoint = start(count)
        if is_built:
            train_model(*model, range(20, 22))
        checkpoint.restore(path).assert_existing_objects_matched()
        losses += train_model(*model, range(2 * number, 2 * number + 2))
    np.testing.assert_array_equal(losses, expected)


def test_lists_of_other_variables_are_numbered_as_before(tmp_path: Path):
    made(2)
    module = tf.Module()
    module.items = [tf.Variable(1.0), [tf.Variable(2.0)], 3, tf.Variable(4.0)]
    assert [*module.items._trackable_children()] == ["0", "1", "3"]


#: Of TensorFlow 1; their slots have names.
V1_OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.5),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.5),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.5),
}


class Run:
    """A model in a graph and its session."""

    def __init__(self, count: int | None, optimizer: str, sharded: bool = False) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            table = fusion.get_embedding_variable(
                "table",
                DIM,
                partitioner=count and v1.fixed_size_partitioner(count),
                ev_option=EmbeddingVariableOption(capacity=150, seed=3),
            )
            self.ids = v1.placeholder(tf.int64, [None])
            rows = table.embedding_lookup(self.ids)
            self.loss = tf.reduce_sum((tf.tanh(rows) - 0.2) ** 2)
            self.train = V1_OPTIMIZERS[optimizer]().minimize(self.loss)
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())
            self.saver = v1.train.Saver(sharded=sharded)

    def losses(self, steps: range) -> list[float]:
        keys = (np.random.default_rng(k).integers(-60, 60, 20) for k in steps)
        return [float(self.session.run([self.loss, self.train], {self.ids: k})[0]) for k in keys]

    def save(self, path: str) -> str:
        with self.graph.as_default():
            return self.saver.save(self.session, path, write_meta_graph=False)

    def restore(self, path: str) -> None:
        with self.graph.as_default():
            self.saver.restore(self.session, path)


@pytest.mark.parametrize(
    ("optimizer", "sharded"), [("adagrad", False), ("adam", True), ("ftrl", False)]
)
def test_the_saver_of_tensorflow_1_restores_slots_into_any_partitions(
    tmp_path: Path, optimizer, sharded
):
    expected = Run(None, optimizer).losses(range(10))
    losses, path = [], ""
    # More to fewer, fewer to more, some to none, none to some.
    for number, count in enumerate((3, 2, 5, None, 3)):
        run = Run(count, optimizer, sharded)
        if path:
            run.losses(range(20, 22))  # other keys, and slots
            run.restore(path)
        losses += run.losses(range(2 * number, 2 * number + 2))
        path = run.save(f"{tmp_path}/{number}")
    assert losses == expected


def test_names_in_files_of_tensorflow_1_do_not_tell_the_partitions(tmp_path: Path):
    names = []
    for count in (None, 3):
        run = Run(count, "ftrl")
        path = run.save(f"{tmp_path}/{count}")
        names.append([name for name, _ in tf.train.list_variables(path)])
    assert names[1] == names[0]
    assert "table/Ftrl_1/values" in names[0]


class Model(tf.Module):
    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.variable = variable

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, keys):
        return {"rows": self.variable.embedding_lookup(keys)}


def test_saved_models(tmp_path: Path):
    table, own = made(3), fusion.optimizers.Adagrad(0.1)
    train(table, own, range(3))
    model = Model(table)
    tf.saved_model.save(model, f"{tmp_path}/model", signatures=model.__call__)
    expected = table.embedding_lookup(KEYS).numpy()
    assert np.unique(expected).size > 60
    loaded = tf.saved_model.load(f"{tmp_path}/model")
    for _ in range(2):
        np.testing.assert_array_equal(loaded(KEYS)["rows"], expected)
    with v1.Session(graph=tf.Graph()) as session:
        meta = v1.saved_model.load(session, ["serve"], f"{tmp_path}/model")
        signature = meta.signature_def["serving_default"]
        fetch, feed = signature.outputs["rows"].name, signature.inputs["keys"].name
        found = session.run(fetch, {feed: KEYS.numpy()})
        np.testing.assert_array_equal(found, expected)
