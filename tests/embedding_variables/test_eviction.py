from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import EmbeddingVariable, ops
from fusion.tables import GlobalStepEvict, L2WeightEvict, LeastFrequent, LeastRecent
from tests.embedding_variables.test_checkpoints import entries, rows_of, train


def test_age():
    variable = EmbeddingVariable("table", 2, eviction=GlobalStepEvict(2))
    for step in range(5):
        train(variable, step, 100)
    assert int(variable.evict()) == 2
    assert entries(variable).keys() == {2, 3, 4, 100}
    assert int(variable.evict()) == 0


def test_age_by_a_step_of_ones_own():
    step = tf.Variable(0, dtype=tf.int64)
    variable = EmbeddingVariable("t", 2, eviction=GlobalStepEvict(10), step=step.read_value)
    train(variable, 1)
    step.assign(8)
    train(variable, 2)
    step.assign(15)
    assert int(variable.evict()) == 1
    assert {key: found[2] for key, found in entries(variable).items()} == {2: 8}


def test_norm():
    variable = EmbeddingVariable(
        "table", 2, eviction=L2WeightEvict(1.0), initializer=tf.zeros_initializer()
    )
    train(variable, 5, 10, 12)  # rows of -0.5, -1 and -1.2: half a squared norm of 0.25, 1 and 1.44
    assert int(variable.evict()) == 1
    assert entries(variable).keys() == {10, 12}


@pytest.mark.parametrize(("policy", "kept"), [(LeastFrequent(2), {1, 2}), (LeastRecent(2), {3, 4})])
def test_down_to_a_capacity(policy, kept):
    variable = EmbeddingVariable("table", 2, eviction=policy)
    for keys in ((1, 2), (1, 2), (1,), (3,), (4,)):
        train(variable, *keys)
    assert int(variable.evict()) == 2
    assert entries(variable).keys() == kept
    assert int(variable.evict()) == 0


def test_rows_are_given_to_other_keys_after_the_next_eviction():
    variable = EmbeddingVariable("table", 2, eviction=LeastRecent(1), capacity=4)
    train(variable, 1, 2)
    train(variable, 3)
    freed = {entries(variable)[key][0] for key in (1, 2)}
    variable.evict()
    assert entries(variable).keys() == {3}
    train(variable, 4)  # the last row that was never used
    train(variable, 5)  # there is no room: it waits
    assert entries(variable)[5][0] == -1
    assert (variable.embedding_lookup([5]).numpy() == 0).all()
    variable.evict()
    train(variable, 5)
    train(variable, 6)
    assert {entries(variable)[key][0] for key in (5, 6)} == freed
    fresh = EmbeddingVariable("table", 2)
    train(fresh, 6)
    assert (rows_of(variable, 10)[6] == rows_of(fresh, 10)[6]).all()


def test_slots_follow_their_rows():
    variable = EmbeddingVariable("table", 2, eviction=LeastRecent(1), capacity=4)
    slot = tf.Variable(ops.zeros_on_demand(shape=tf.constant([4, 2], tf.int64), T=tf.float32))
    variable.add_slot(slot, tf.constant([[0.5, 0.25]]))
    train(variable, 1)
    train(variable, 2)
    row = entries(variable)[1][0]
    slot.scatter_update(tf.IndexedSlices(tf.constant([[8.0, 9.0]]), [row]))
    variable.evict()
    assert slot.numpy()[row].tolist() == [8, 9]  # updates may be on their way to it
    variable.evict()
    assert slot.numpy()[row].tolist() == [0.5, 0.25]


def test_keys_that_wait_are_forgotten_where_they_are_many():
    variable = EmbeddingVariable("table", 2, admission=2, eviction=LeastRecent(10))
    train(variable, 1, 1, 2, 2, 3, 3, 4, 5)
    variable.evict()
    assert entries(variable).keys() == {1, 2, 3, 4, 5}
    train(variable, 6, 7)
    variable.evict()
    assert entries(variable).keys() == {1, 2, 3}


def test_in_a_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = EmbeddingVariable("table", 2, eviction=LeastRecent(2))
        keys = tf.compat.v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(variable.embedding_lookup(keys))
        gradient = tf.gradients(loss, variable.table)
        evicted = variable.evict()
        known = ops.embedding_key_entries(index=variable.index.handle).keys
        session.run(tf.compat.v1.global_variables_initializer())
        for key in range(5):
            session.run(gradient, {keys: [key]})
        assert session.run(evicted) == 3
        assert sorted(session.run(known)) == [3, 4]


@dataclass(frozen=True)
class Calling(LeastRecent):
    """Calls a function while it says which keys to forget."""

    call: Callable[[], None] = lambda: None

    def victims(self, keys: Any) -> tf.Tensor:
        with tf.control_dependencies([tf.py_function(self.call, [], [])]):
            return super().victims(keys)


def test_an_eviction_of_a_session_waits_for_another():
    """Else both would reset and release the same rows, of which new keys have some by then."""
    # One thread calls Python while the other evicts. The pool that Sessions share is as large as
    # the first of the process wanted it to be.
    config = tf.compat.v1.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=2)

    def evict_meanwhile() -> None:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(evicted[1], options=tf.compat.v1.RunOptions(timeout_in_ms=300))

    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        policies = Calling(2, evict_meanwhile), LeastRecent(2)
        variables = [EmbeddingVariable(f"table_{n}", 2, eviction=p) for n, p in enumerate(policies)]
        evicted = [variable.evict() for variable in variables]
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(evicted[0]) == 0
        assert session.run(evicted[1]) == 0


def test_an_eviction_that_fails_lets_others_run():
    def fail() -> None:
        raise ValueError("no victims")

    variable = EmbeddingVariable("table", 2, eviction=Calling(2, fail))
    evict = tf.function(variable.evict)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no victims"):
        variable.evict()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no victims"):
        evict()
    assert int(EmbeddingVariable("other", 2, eviction=LeastRecent(2)).evict()) == 0


def test_what_cannot_be():
    with pytest.raises(ValueError, match="has no eviction"):
        EmbeddingVariable("table", 2).evict()
    with pytest.raises(
        TypeError, match=r"eviction must be None or one of GlobalStepEvict, .*got 7"
    ):
        EmbeddingVariable("table", 2, eviction=7)
    with pytest.raises(TypeError, match="step must be None, a variable or a function, got 7"):
        EmbeddingVariable("table", 2, step=7)
    for policy in (GlobalStepEvict, LeastFrequent, LeastRecent):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            policy(0)
    with pytest.raises(ValueError, match="must be positive, got 0"):
        L2WeightEvict(0)


def test_without_eviction_there_must_be_room():
    variable = EmbeddingVariable("table", 2, capacity=2)
    train(variable, 1, 2)
    before = rows_of(variable)
    with pytest.raises(
        tf.errors.ResourceExhaustedError, match=r"room for 1 keys more .* of 2 rows"
    ):
        train(variable, 3)
    assert (rows_of(variable) == before).all()
    train(variable, 2)
    assert np.isfinite(rows_of(variable)).all()


def test_a_restored_table_counts_its_lookups_on(tmp_path):
    """Keys that are trained after it are newer than those of the checkpoint."""
    first = EmbeddingVariable("table", 2, capacity=9, eviction=GlobalStepEvict(2))
    for _ in range(20):
        train(first, 1)
    train(first, 2)
    path = tf.train.Checkpoint(table=first).write(str(tmp_path / "save"))
    second = EmbeddingVariable("table", 2, capacity=9, eviction=GlobalStepEvict(2))
    tf.train.Checkpoint(table=second).read(path)
    for key in (3, 4):
        train(second, key)
    assert int(second.evict()) == 1
    assert rows_of(second)[[2, 3, 4]].any(1).all()
    assert not rows_of(second)[1].any()
