"""How a table of keys is cut into partitions: how many there are, how large, and their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion.ops.tables.cpu_kernels.layout import EV_BUCKETS
from fusion.tables.arguments import integer

#: Rows that each partition has beyond its share, so that a small table is not full too early.
_SPARE_ROWS = 64


def partition_capacity(capacity: int | None, count: int) -> int | None:
    """How many keys each of `count` partitions has room for; None for what memory may hold.

    Args:
      capacity: that of the whole, or None.
      count: how many partitions there are.

    Raises:
      TypeError, ValueError: `capacity` is no positive integer.
    """
    if capacity is None:
        return None
    capacity = integer("capacity", capacity)
    share = -(-capacity // count)
    return min(capacity, share + share // 4 + _SPARE_ROWS)


def partition_names(name: str, count: int | None) -> list[str]:
    """The names of the tables of a table: its own if `count` is None."""
    return [name] if count is None else [f"{name}/part_{number}" for number in range(count)]


def whole_name(name: str) -> str:
    """The name of the whole of that of the table of a partition."""
    return re.sub(r".part_\d+$", "", name)


def partitions_by(partitioner: Any, shape: Sequence[int], dtype: tf.DType) -> int | None:
    """How many partitions a partitioner of `tf.compat.v1` makes of a table; None without one.

    Args:
      partitioner: called with the shape and the dtype of a table, or None.
      shape, dtype: those.

    Raises:
      TypeError: it is no function.
      ValueError: it divides rows, makes more partitions than there can be, or gives something else.
    """
    if partitioner is None:
        return None
    if not callable(partitioner):
        raise TypeError(f"partitioner must be callable, got {partitioner!r}")
    counts = partitioner(shape=tf.TensorShape(shape), dtype=dtype)
    if len(counts) != 2 or counts[1] != 1:
        raise ValueError(f"partitioner must give [partitions, 1], got {counts}")
    return checked_count("partitions of partitioner", counts[0])


def checked_count(name: str, count: Any) -> int:
    """A number of partitions.

    Args:
      name: of the argument, for errors.
      count: what was given.

    Raises:
      TypeError: it is no integer.
      ValueError: it is not one of 1 to 1000.
    """
    return integer(name, count, most=EV_BUCKETS)
