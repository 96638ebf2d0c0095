"""Eviction policies: which keys of an embedding variable are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.tables.arguments import integer
from fusion.tables.graph_order import after, in_graph

#: The name of TensorFlow's mutex that evictions hold. All Sessions, functions and threads that run
#: ops on a device find it there.
_MUTEX = "fusion_eviction"


@dataclass(frozen=True)
class GlobalStepEvict:
    """Keys that were not trained in the last `steps_to_live` steps."""

    steps_to_live: int

    def __post_init__(self) -> None:
        integer("steps_to_live", self.steps_to_live)

    def victims(self, keys: Keys) -> tf.Tensor:
        """A mask [n] of the keys to forget."""
        return keys.steps < keys.now - self.steps_to_live


@dataclass(frozen=True)
class L2WeightEvict:
    """Keys whose row has half a squared L2 norm below the threshold, as DeepRec measures it."""

    l2_weight_threshold: float

    def __post_init__(self) -> None:
        if not float(self.l2_weight_threshold) > 0:
            raise ValueError(
                f"l2_weight_threshold must be positive, got {self.l2_weight_threshold!r}"
            )

    def victims(self, keys: Keys) -> tf.Tensor:
        """A mask [n] of the keys to forget."""
        values = tf.gather(keys.table, keys.rows)
        return tf.reduce_sum(values * values, 1) / 2 < self.l2_weight_threshold


@dataclass(frozen=True)
class LeastFrequent:
    """All but the `capacity` keys that were seen most often (LFU)."""

    capacity: int

    def __post_init__(self) -> None:
        integer("capacity", self.capacity)

    def victims(self, keys: Keys) -> tf.Tensor:
        """A mask [n] of the keys to forget."""
        return _below(keys.counts, self.capacity)


@dataclass(frozen=True)
class LeastRecent:
    """All but the `capacity` keys that were trained last (LRU)."""

    capacity: int

    def __post_init__(self) -> None:
        integer("capacity", self.capacity)

    def victims(self, keys: Keys) -> tf.Tensor:
        """A mask [n] of the keys to forget."""
        return _below(keys.steps, self.capacity)


@dataclass(frozen=True)
class Keys:
    """Keys that have rows.

    Attributes:
      table: the variable [capacity, D].
      rows: int64 [n], of each key.
      counts: int32 [n], how often it was seen.
      steps: int64 [n], when it was seen last.
      now: int64, the step.
    """

    table: Any
    rows: tf.Tensor
    counts: tf.Tensor
    steps: tf.Tensor
    now: tf.Tensor


def forget(
    policy: Any,
    table: Any,
    index: Any,
    now: tf.Tensor | None,
    reset: Callable[[tf.Tensor], Sequence[Any]],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Removes the keys that a policy chooses from an index; one eviction at a time.

    Of two at the same time, one would reset and release rows that the other has just released, or
    taken from keys. Keys that wait for admission are forgotten, too, where they are more than those
    with rows.

    Args:
      policy: one of `POLICIES`.
      table, index: the variables of the embedding variable.
      now: the number of the step, int64 []; where keys are newer, it is theirs. None: that of
        lookups in training.
      reset: makes rows of slots what they were first; in a graph what it returns is waited for.

    Returns:
      How many keys with rows were forgotten, int64 [], and how many lookups in training there were
      before, int64 [1].
    """
    # In a list alone, so that the lock is free when an error leaves, whose traceback has the frame.
    lock = [tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=_MUTEX))]
    try:
        with after(lock[0]):
            results = _forget(policy, table, index, now, reset)
        with tf.control_dependencies(in_graph(results)):
            unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock[0])
    finally:
        lock.clear()
    with after(unlocked):
        forgotten, clock = map(tf.identity, results)
    return forgotten, clock


def _forget(
    policy: Any,
    table: Any,
    index: Any,
    now: tf.Tensor | None,
    reset: Callable[[tf.Tensor], Sequence[Any]],
) -> tuple[tf.Tensor, tf.Tensor]:
    entries = ops.embedding_key_entries(index=index.handle)
    has_row = entries.rows >= 0
    with_rows = tf.where(has_row)[:, 0]
    steps = tf.gather(entries.steps, with_rows)
    newest = tf.reduce_max(tf.concat([steps, [0]], 0))
    keys = Keys(
        table,
        tf.gather(entries.rows, with_rows),
        tf.gather(entries.counts, with_rows),
        steps,
        tf.maximum(newest, entries.clock[0] if now is None else now),
    )
    victims = tf.boolean_mask(tf.gather(entries.keys, with_rows), policy.victims(keys))
    waiting = tf.boolean_mask(entries.keys, tf.logical_not(has_row))
    is_many = tf.size(waiting) > tf.size(with_rows)
    forgotten = waiting[: tf.where(is_many, tf.size(waiting), 0)]
    resets = reset(entries.pending[: entries.aged[0]])
    with tf.control_dependencies(in_graph(resets)):
        removed = ops.remove_embedding_keys(
            index=index.handle,
            keys=tf.concat([victims, forgotten], 0),
            release=entries.aged[0],
        )
    return tf.math.count_nonzero(removed >= 0), entries.clock


def _below(numbers: tf.Tensor, count: int) -> tf.Tensor:
    """A mask of all but the `count` largest numbers; of equal ones the first are out."""
    excess = tf.maximum(tf.size(numbers) - count, 0)
    out = tf.argsort(numbers, stable=True)[:excess]
    return tf.scatter_nd(out[:, tf.newaxis], tf.ones_like(out), [tf.size(numbers)]) > 0


#: What `eviction` of an embedding variable can be.
POLICIES = (GlobalStepEvict, L2WeightEvict, LeastFrequent, LeastRecent)
