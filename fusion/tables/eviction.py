"""Which keys of an embedding variable are forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class GlobalStepEvict:
    """Keys that were not trained in the last `steps_to_live` steps."""

    steps_to_live: int

    def __post_init__(self) -> None:
        _check_positive("steps_to_live", self.steps_to_live)

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
        _check_positive("capacity", self.capacity)

    def victims(self, keys: Keys) -> tf.Tensor:
        """A mask [n] of the keys to forget."""
        return _below(keys.counts, self.capacity)


@dataclass(frozen=True)
class LeastRecent:
    """All but the `capacity` keys that were trained last (LRU)."""

    capacity: int

    def __post_init__(self) -> None:
        _check_positive("capacity", self.capacity)

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


def _below(numbers: tf.Tensor, kept: int) -> tf.Tensor:
    """A mask of all but so many of the largest numbers; of equal ones the first are out."""
    count = tf.maximum(tf.size(numbers) - kept, 0)
    out = tf.argsort(numbers, stable=True)[:count]
    return tf.scatter_nd(out[:, tf.newaxis], tf.ones_like(out), [tf.size(numbers)]) > 0


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


#: What `eviction` of an embedding variable can be.
POLICIES = (GlobalStepEvict, L2WeightEvict, LeastFrequent, LeastRecent)
