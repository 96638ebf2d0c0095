from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion import EmbeddingVariable, ops
from fusion.tables import GlobalStepEvict

v1 = tf.compat.v1


def entries(variable: EmbeddingVariable) -> dict[int, tuple[int, int, int]]:
    """Of each key its row, how often it was seen, and when for the last time."""
    found = ops.embedding_key_entries(index=variable.index.handle)
    parts = (found.rows, found.counts, found.steps)
    values = zip(*(part.numpy().tolist() for part in parts), strict=True)
    return dict(zip(found.keys.numpy().tolist(), values, strict=True))


def train(variable: EmbeddingVariable, *keys: int) -> None:
    """Subtracts a tenth of the key's number from its row."""
    ids = tf.constant(keys, tf.int64)
    with tf.GradientTape() as tape:
        rows = variable.embedding_lookup(ids)
        loss = tf.reduce_sum(rows * tf.cast(ids, rows.dtype)[:, tf.newaxis])
    slices = tape.gradient(loss, variable.table)
    variable.table.scatter_sub(tf.IndexedSlices(slices.values * 0.1, slices.indices))


def rows_of(variable: EmbeddingVariable, count: int = 100) -> np.ndarray:
    return variable.embedding_lookup(tf.range(count, dtype=tf.int64)).numpy()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_keys_rows_counts_and_steps_come_back_into_another_capacity(tmp_path: Path, dtype):
    first = EmbeddingVariable("first", 3, dtype, admission=2, seed=9)
    train(first, 1, 2, 3)
    train(first, 2, 3, 4)
    train(first, 3, 4, 90)
    path = tf.train.Checkpoint(table=first).write(str(tmp_path / "save"))
    second = EmbeddingVariable("second", 3, dtype, admission=2, capacity=20, seed=9)
    train(second, 7, 7, 3, 3)  # 7 is not in the checkpoint, 3 has another row there
    tf.train.Checkpoint(table=second).read(path).assert_consumed()
    assert (rows_of(first) == rows_of(second)).all()
    without_rows = [{k: v[1:] for k, v in entries(x).items()} for x in (first, second)]
    assert without_rows[0] == without_rows[1]
    assert {k for k, (row, *_) in entries(second).items() if row >= 0} == {2, 3, 4}
    # New keys begin as they would have.
    for variable in (first, second):
        train(variable, 50, 50)
    assert (rows_of(first) == rows_of(second)).all()


def test_keys_that_wait_are_those_of_the_checkpoint(tmp_path: Path):
    first, second = (EmbeddingVariable("table", 2, admission=3, seed=9) for _ in range(2))
    train(first, 1, 2, 2, 3, 3, 3)
    saved = {key: found[1] for key, found in entries(first).items()}
    assert saved == {1: 1, 2: 2, 3: 3}
    path = tf.train.Checkpoint(table=first).write(str(tmp_path / "save"))
    train(second, 1, 1, 1, 2, 3, 7)  # 1 has a row here, 2, 3 and 7 wait
    for _ in range(2):
        tf.train.Checkpoint(table=second).read(path)
        assert {key: found[1] for key, found in entries(second).items()} == saved
    assert {key for key, (row, *_) in entries(second).items() if row >= 0} == {3}
    assert (rows_of(first) == rows_of(second)).all()
    for variable in (first, second):
        train(variable, 1, 2)
    assert {key for key, (row, *_) in entries(second).items() if row >= 0} == {2, 3}
    assert (rows_of(first) == rows_of(second)).all()


def test_a_checkpoint_of_little_is_little(tmp_path: Path):
    variable = EmbeddingVariable("table", 64)
    train(variable, 5)
    tf.train.Checkpoint(table=variable).write(str(tmp_path / "save"))
    initial = variable.initial.shape.num_elements() * 4
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < initial + 10_000


def test_the_table_alone_brings_its_keys(tmp_path: Path):
    first = EmbeddingVariable("first", 2)
    train(first, 1, 2)
    path = tf.train.Checkpoint(table=first.table).write(str(tmp_path / "save"))
    second = EmbeddingVariable("second", 2)
    tf.train.Checkpoint(table=second.table).read(path).assert_consumed()
    assert (rows_of(first) == rows_of(second)).all()


def test_rows_of_another_dimension_are_an_error_that_changes_nothing(tmp_path: Path):
    first, second = EmbeddingVariable("first", 2), EmbeddingVariable("second", 3)
    train(first, 1)
    train(second, 2)
    path = tf.train.Checkpoint(table=first).write(str(tmp_path / "save"))
    before = rows_of(second)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=r"dimension|shape"):
        tf.train.Checkpoint(table=second).read(path)
    assert (rows_of(second) == before).all()
    assert entries(second).keys() == {2}


def test_more_keys_than_rows_are_an_error(tmp_path: Path):
    first, second = EmbeddingVariable("first", 2), EmbeddingVariable("second", 2, capacity=3)
    train(first, 1, 2, 3, 4)
    path = tf.train.Checkpoint(table=first).write(str(tmp_path / "save"))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="room for 1 keys more"):
        tf.train.Checkpoint(table=second).read(path)


def test_a_full_table_takes_a_checkpoint_of_other_keys(tmp_path: Path):
    variable = EmbeddingVariable("table", 2, capacity=3)
    train(variable, 1, 2, 3)
    path = tf.train.Checkpoint(table=variable).write(str(tmp_path / "save"))
    other = EmbeddingVariable("other", 2, capacity=3)
    train(other, 7, 8, 9)
    tf.train.Checkpoint(table=other).read(path)
    assert entries(other).keys() == {1, 2, 3}
    assert (rows_of(other) == rows_of(variable)).all()


def test_a_save_evicts_once(tmp_path: Path):
    variable = EmbeddingVariable("table", 2, eviction=GlobalStepEvict(1))
    for key in range(4):
        train(variable, key)
    checkpoint = tf.train.Checkpoint(table=variable)
    path = checkpoint.write(str(tmp_path / "save"))
    assert entries(variable).keys() == {2, 3}
    checkpoint.write(str(tmp_path / "again"))
    found = ops.embedding_key_entries(index=variable.index.handle)
    assert found.pending.shape == [2]  # rows of the first time, which are not released yet
    other = EmbeddingVariable("other", 2)
    tf.train.Checkpoint(table=other).read(path)
    assert entries(other).keys() == {2, 3}


class Model(tf.Module):
    def __init__(self, variable: EmbeddingVariable) -> None:
        super().__init__()
        self.variable = variable

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, keys):
        return {"rows": self.variable.embedding_lookup(keys)}


@pytest.mark.parametrize("evicts", [False, True])
def test_saved_models_have_the_rows_and_train_no_more(tmp_path: Path, evicts):
    step = tf.Variable(3, dtype=tf.int64) if evicts else None
    policy = GlobalStepEvict(100) if evicts else None
    variable = EmbeddingVariable("table", 2, default_value=7.0, eviction=policy, step=step)
    shape = tf.constant([variable.capacity, 2], tf.int64)
    slot = tf.Variable(ops.zeros_on_demand(shape=shape, T=tf.float32))
    variable.add_slot(slot)  # which is not saved
    train(variable, 1, 2, 3)
    model = Model(variable)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant([2, 3], tf.int64))["rows"])
    tape.gradient(loss, variable.table)
    tf.saved_model.save(model, str(tmp_path / "model"), signatures=model.__call__)
    keys = tf.range(10, dtype=tf.int64)
    expected = rows_of(variable, 10)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for _ in range(2):
        assert (loaded(keys)["rows"].numpy() == expected).all()
        assert (loaded.signatures["serving_default"](keys=keys)["rows"].numpy() == expected).all()
    with v1.Session(graph=tf.Graph()) as session:
        meta = v1.saved_model.load(session, ["serve"], str(tmp_path / "model"))
        signature = meta.signature_def["serving_default"]
        fetch, feed = signature.outputs["rows"].name, signature.inputs["keys"].name
        for _ in range(2):
            assert (session.run(fetch, {feed: np.arange(10)}) == expected).all()
