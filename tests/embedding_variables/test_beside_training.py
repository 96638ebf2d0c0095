"""What is saved while training goes on in another thread, and files that are torn by it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import EmbeddingVariable, ops
from fusion.tables import LeastRecent, PartitionedEmbeddingVariable, keyed_rows
from fusion.tables.partitioned import KeyedTable

v1 = tf.compat.v1

DIM, CAPACITY = 2, 2**18

#: A key that a torn file has of slots alone.
TORN = 99


class Training:
    """A table, partitioned or not, and an optimizer: LazyAdam if none is given."""

    def __init__(self, partitions: int = 0, optimizer: Any = None, **options: Any) -> None:
        options = {"capacity": CAPACITY, "seed": 1, "initializer": tf.ones, **options}
        self.table: KeyedTable = (
            PartitionedEmbeddingVariable("items", DIM, partitions, **options)
            if partitions
            else EmbeddingVariable("items", DIM, **options)
        )
        self.optimizer = optimizer or fusion.optimizers.LazyAdam(0.01)
        self.optimizer.build(self.tables)
        self.checkpoint = tf.train.Checkpoint(model=self.table, optimizer=self.optimizer)
        self.step = tf.function(self._step, [tf.TensorSpec([None], tf.int64)])

    @property
    def tables(self) -> list[Any]:
        return (
            self.table.tables
            if isinstance(self.table, PartitionedEmbeddingVariable)
            else [self.table.table]
        )

    def _step(self, keys: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.table.embedding_lookup(keys))
        gradients = tape.gradient(loss, self.tables)
        self.optimizer.apply_gradients(zip(gradients, self.tables, strict=True))

    def exported(self, path: Path) -> dict[int, list[float]]:
        """The rows of keys."""
        self.table.export(path)
        keys = np.fromfile(path / "key", np.int64)
        rows = np.fromfile(path / "emb_vector", np.float32).reshape(-1, DIM)
        assert len({*keys.tolist()}) == len(keys)
        return dict(zip(keys.tolist(), rows.tolist(), strict=True))

    def slot_rows(self, keys: list[int]) -> list[np.ndarray]:
        """The rows of keys in each slot."""
        part = self.table
        assert isinstance(part, EmbeddingVariable)
        rows = ops.find_embedding_keys(index=part.index.handle, keys=tf.constant(keys, tf.int64))
        assert (rows.numpy() >= 0).all()
        return [slot.numpy()[rows.numpy()] for slot in part.slots]


@contextmanager
def trained_beside(training: Training) -> Iterator[None]:
    """A context in which another thread trains new keys all the time."""
    numbers, done, began = itertools.count(1000, 200), threading.Event(), threading.Event()

    def train() -> None:
        while not done.is_set():
            training.step(np.arange(200) + next(numbers))
            began.set()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        began.wait()
        yield
    finally:
        done.set()
        thread.join()


def write_checkpoint(training: Training, path: Path) -> None:
    training.checkpoint.write(str(path))


def write_async(training: Training, path: Path) -> None:
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    checkpoint = tf.train.Checkpoint(model=training.table, optimizer=training.optimizer)
    checkpoint.write(str(path), options=options)
    checkpoint.sync()


def read_checkpoint(training: Training, path: Path) -> None:
    training.checkpoint.read(str(path)).assert_existing_objects_matched()


def write_store(training: Training, path: Path) -> None:
    """What Keras's files have of an optimizer and of a layer."""
    store: dict[str, Any] = {}
    keyed_store(training).save_own_variables(store)
    np.savez(path, **store)
    store = {}
    training.optimizer.save_own_variables(store)
    np.savez(f"{path}-optimizer", **store)


def read_store(training: Training, path: Path) -> None:
    keyed_store(training).load_own_variables(dict(np.load(f"{path}.npz")))
    training.optimizer.load_own_variables(dict(np.load(f"{path}-optimizer.npz")))


def keyed_store(training: Training) -> Any:
    layer = fusion.tables.keras_store.KeyedWeights()
    layer._trainable_variables, layer._non_trainable_variables = training.tables, []
    return layer


def write_export(training: Training, path: Path) -> None:
    training.table.export(path)


def write_delta(training: Training, path: Path) -> None:
    training.table.delta(path, 1)


def read_export(training: Training, path: Path) -> None:
    training.table.import_from(path)


FORMATS: dict[str, tuple[Callable[..., None], Callable[..., None], int]] = {
    "checkpoint": (write_checkpoint, read_checkpoint, 0),
    "asynchronous": (write_async, read_checkpoint, 0),
    "Keras": (write_store, read_store, 0),
    "export": (write_export, read_export, 0),
    "delta": (write_delta, read_export, 2),
    "partitions": (write_checkpoint, read_checkpoint, 2),
}


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_saved_beside_training_has_a_row_of_each_key(tmp_path: Path, format: str):
    write, read, partitions = FORMATS[format]
    training = Training(partitions)
    with trained_beside(training):
        for number in range(3):
            write(training, tmp_path / f"{number}")
    for number in range(3):
        other = Training(partitions)
        read(other, tmp_path / f"{number}")
        rows = other.exported(tmp_path / f"{number}.rows")
        assert rows
        assert all(np.all(np.greater(row, 0.5)) for row in rows.values())  # begun with 1


def test_an_asynchronous_checkpoint_is_of_the_moment_when_it_was_asked_for(tmp_path: Path):
    """Also the second one, for which TensorFlow traces what copies."""

    class Model(tf.Module):
        def __init__(self) -> None:
            self.variable = EmbeddingVariable("items", DIM, capacity=9, eviction=LeastRecent(3))
            with self.variable.beside():
                self.slot = tf.Variable(tf.zeros([9, DIM]))
            self.variable.add_slot(self.slot)

        def train(self, key: int) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.variable.embedding_lookup([key]))
            rows = tape.gradient(loss, self.variable.table).indices
            for variable in (self.variable.table, self.slot):
                value = tf.fill([1, DIM], float(key))
                variable.scatter_update(tf.IndexedSlices(value, rows))

    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    paths = []
    for key in range(1, 6):
        model.train(key)
        paths.append(checkpoint.save(str(tmp_path / "save"), options=options))
        model.train(50 + key)
        model.train(key + 1)
    checkpoint.sync()
    for key, path in enumerate(paths, 1):
        other = Model()
        tf.train.Checkpoint(model=other).read(path).expect_partial()
        entries = ops.embedding_key_entries(index=other.variable.index.handle)
        known = entries.keys.numpy().tolist()
        assert {*known} == {key, *([key - 1 + 50, key - 1] if key > 1 else [])}
        rows, slot = other.variable.table.numpy(), other.slot.numpy()
        for one, row in zip(known, entries.rows.numpy().tolist(), strict=True):
            assert (rows[row] == one).all()
            assert (slot[row] == one).all()


def tear(path: Path, torn: Path) -> int:
    """Copies a checkpoint, with one key more in slots; returns of how many."""
    reader = tf.train.load_checkpoint(str(path))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    slots = [n[:-4] for n in tensors if n.endswith("keys") and f"{n[:-4]}steps" not in tensors]
    for slot in slots:
        keys, values = tensors[f"{slot}keys"], tensors[f"{slot}values"]
        tensors[f"{slot}keys"] = np.append(keys, TORN)
        tensors[f"{slot}values"] = np.concatenate([values, values[:1] + 7])
    tf.raw_ops.SaveV2(
        prefix=str(torn),
        tensor_names=[*tensors],
        shape_and_slices=[""] * len(tensors),
        tensors=[*tensors.values()],
    )
    return len(slots)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("names", [("model", "optimizer"), ("z_table", "optimizer")])
def test_a_key_of_slots_alone_is_no_key(tmp_path: Path, names, partitions):
    first = Training(partitions)
    first.step([1, 2, 3])

    def checkpoint_of(training: Training) -> tf.train.Checkpoint:
        """Which restores the table first, or the slots."""
        objects = (training.table, training.optimizer)
        return tf.train.Checkpoint(**dict(zip(names, objects, strict=True)))

    path = checkpoint_of(first).write(str(tmp_path / "save"))
    assert tear(path, tmp_path / "torn") == 2
    second = Training(partitions)
    second.step([2, 4, TORN])
    checkpoint_of(second).read(str(tmp_path / "torn"))
    assert second.exported(tmp_path / "rows") == first.exported(tmp_path / "expected")
    for training in (first, second):
        training.step([1, 2, 4, TORN])
    assert second.exported(tmp_path / "rows2") == first.exported(tmp_path / "expected2")


class OfSession:
    """A table and a slot in a graph of `tf.compat.v1`, whose rows become the numbers of keys."""

    def __init__(self, slot_name: str) -> None:
        self.table = EmbeddingVariable("items", DIM, capacity=9, seed=1, initializer=tf.ones)
        initializer = v1.constant_initializer(0.5)
        slot = v1.get_variable(slot_name, [9, DIM], initializer=initializer, use_resource=True)
        self.table.add_slot(slot, np.full([1, DIM], 0.5, np.float32), is_filled=True)
        self.keys = v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(self.table.embedding_lookup(self.keys))
        rows = tf.gradients(loss, self.table.table)[0].indices
        values = tf.cast(self.keys, tf.float32)[:, tf.newaxis] * tf.ones([1, DIM])
        slices = tf.IndexedSlices(values, rows)
        self.step = [v.scatter_update(slices) for v in (self.table.table, slot)]
        index = self.table.index.handle
        self.known = ops.embedding_key_entries(index=index).keys
        found = ops.find_embedding_keys(index=index, keys=self.keys)
        self.rows = [v.sparse_read(found) for v in (self.table.table, slot)]
        self.savers = [v1.train.Saver(some) for some in ([self.table.table, slot], [slot])]
        self.session = v1.Session()
        self.session.run(v1.global_variables_initializer())

    def train(self, *keys: int) -> None:
        self.session.run(self.step, {self.keys: keys})


@pytest.mark.parametrize("slot_name", ["before", "next"])
def test_a_key_of_slots_alone_is_no_key_to_the_saver_of_v1(tmp_path: Path, slot_name: str):
    """Also where its ops for the slot are made before those of the table."""
    with tf.Graph().as_default():
        first = OfSession(slot_name)
        first.train(1, 2, 3)
        first.savers[0].save(first.session, str(tmp_path / "save"), write_meta_graph=False)
    assert tear(tmp_path / "save", tmp_path / "torn") == 1
    with tf.Graph().as_default():
        second = OfSession(slot_name)
        second.train(2, 4, TORN)
        for saver, path in ((0, "save"), (0, "torn"), (1, "torn"), (0, "save")):
            second.savers[saver].restore(second.session, str(tmp_path / path))
            assert {*second.session.run(second.known).tolist()} == {1, 2, 3}
            for found in second.session.run(second.rows, {second.keys: [1, 2, 3]}):
                np.testing.assert_array_equal(found, [[1] * DIM, [2] * DIM, [3] * DIM])
        second.train(4, TORN)
        second.savers[1].restore(second.session, str(tmp_path / "save"))
        rows, slot = second.session.run(second.rows, {second.keys: [3, 4, TORN]})
        np.testing.assert_array_equal(rows, [[3] * DIM, [4] * DIM, [TORN] * DIM])
        np.testing.assert_array_equal(slot, [[3] * DIM, [0.5] * DIM, [0.5] * DIM])


def test_slots_of_a_session_wait_for_a_table_that_is_restored_later(tmp_path: Path):
    with tf.Graph().as_default():
        first = OfSession("next")
        first.train(1, 2)
        first.savers[0].save(first.session, str(tmp_path / "save"), write_meta_graph=False)
    with tf.Graph().as_default():
        second = OfSession("next")
        table = v1.train.Saver([second.table.table])
        for saver in (second.savers[1], table):
            saver.restore(second.session, str(tmp_path / "save"))
        for found in second.session.run(second.rows, {second.keys: [1, 2]}):
            np.testing.assert_array_equal(found, [[1] * DIM, [2] * DIM])


def slots_of(training: Training) -> dict[str, Any]:
    """What files have of an optimizer alone: a checkpoint of one has its tables, too."""
    store: dict[str, Any] = {}
    training.optimizer.save_own_variables(store)
    return store


@pytest.mark.parametrize("slots_first", [False, True])
def test_slots_wait_for_a_table_that_is_restored_later(tmp_path: Path, slots_first: bool):
    first, second = Training(), Training()
    first.step([1, 2, 3])
    table = tf.train.Checkpoint(table=first.table).write(str(tmp_path / "table"))
    first.step([1])
    slots = slots_of(first)
    second.step([3, 4])  # a row of 3, which the slot has, too
    reads: list[Callable[[], Any]] = [
        lambda: tf.train.Checkpoint(table=second.table).read(table),
        lambda: second.optimizer.load_own_variables(slots),
    ]
    for read in reads[::-1] if slots_first else reads:
        read()
    assert second.exported(tmp_path / "rows").keys() == {1, 2, 3}
    np.testing.assert_array_equal(second.slot_rows([1, 2, 3]), first.slot_rows([1, 2, 3]))


def test_slots_wait_for_rows_that_are_imported(tmp_path: Path):
    first, second = Training(), Training()
    first.step([1, 2, 3])
    first.table.export(tmp_path / "rows")
    second.optimizer.load_own_variables(slots_of(first))
    assert second.exported(tmp_path / "none") == {}
    second.table.import_from(tmp_path / "rows")
    np.testing.assert_array_equal(second.slot_rows([1, 2, 3]), first.slot_rows([1, 2, 3]))


def test_keys_that_slots_do_not_have_begin_anew(tmp_path: Path):
    """As those that came between the slots and the table."""
    first, second = (Training(optimizer=fusion.optimizers.Adagrad(0.1, 0.25)) for _ in range(2))
    first.step([1, 2])
    slots = slots_of(first)
    first.step([3])
    table = tf.train.Checkpoint(table=first.table).write(str(tmp_path / "table"))
    second.step([3])
    tf.train.Checkpoint(table=second.table).read(table)
    second.optimizer.load_own_variables(slots)
    (rows,) = second.slot_rows([1, 2, 3])
    np.testing.assert_array_equal(rows, [[1.25] * DIM, [1.25] * DIM, [0.25] * DIM])


def test_slots_of_keys_that_came_a_moment_ago_are_saved_as_they_begin(tmp_path: Path):
    first, second = (Training(optimizer=fusion.optimizers.Adagrad(0.1, 0.25)) for _ in range(2))
    with tf.GradientTape():
        first.table.embedding_lookup([7])  # whose gradient comes later
    second.checkpoint.read(first.checkpoint.write(str(tmp_path / "save")))
    (rows,) = second.slot_rows([7])
    np.testing.assert_array_equal(rows, [[0.25] * DIM])


@pytest.mark.parametrize("format", ["checkpoint", "Keras", "export"])
def test_no_key_is_saved_with_a_row_that_another_has_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
):
    """Between the index and the rows keys are evicted, and others get their rows."""
    write, read, _ = FORMATS[format]
    training = Training(capacity=3)
    training.step([1, 2, 3])
    gather, news = keyed_rows.gather_rows, itertools.count(50)

    def gather_later(variable: Any, rows: Any) -> Any:
        remove = [min(keys())]
        index = training.table.index.handle
        for released in (-1, 1):  # and the next eviction releases its row
            ops.remove_embedding_keys(index=index, keys=remove, release=released)
        training.step([next(news)])
        return gather(variable, rows)

    def keys() -> list[int]:
        found = ops.embedding_key_entries(index=training.table.index.handle)
        return found.keys.numpy().tolist()

    with monkeypatch.context() as patched:
        patched.setattr(keyed_rows, "gather_rows", gather_later)
        write(training, tmp_path / "save")
    assert 1 not in keys()
    other = Training(capacity=3)
    read(other, tmp_path / "save")
    assert other.exported(tmp_path / "rows").keys() == {2, 3}
