"""Columns of embedding variables among lookups that share ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from fusion.ops.registered import DEVICES
from fusion.runtime.tensorflow.cluster import is_in_process_of_ops
from fusion.tables import EmbeddingVariable
from fusion.tables.embedding_variable import KeyedInputs


def is_here(table: Any) -> bool:
    """Whether a table is where ops are that read it as a whole."""
    device = table.device or ""
    is_of_kind = tf.DeviceSpec.from_string(device).device_type in (None, DEVICES.home)
    return is_of_kind and is_in_process_of_ops(device)


def is_keyed(column: Any) -> bool:
    """Whether a column is a lookup in an embedding variable; others are of tables, or matrices."""
    return not isinstance(column, tf.Tensor) and isinstance(column.shards[0], EmbeddingVariable)


def read_keyed(columns: Sequence[Any]) -> dict[int, KeyedInputs]:
    """The inputs for the columns of embedding variables that an op can look up, by number.

    They are on one device, that of the op; others have gathers of their own.

    Raises:
      TypeError: ids of another dtype than the keys.
    """
    by_device: dict[str, dict[int, EmbeddingVariable]] = {}
    for number, column in enumerate(columns):
        if is_keyed(column) and column.reads_table_well:
            (table,) = column.shards
            table.as_ids(column.ids if isinstance(column.ids, tf.Tensor) else column.ids.values)
            by_device.setdefault(table.device, {})[number] = table
    tables: dict[int, EmbeddingVariable] = max(by_device.values(), key=len, default={})
    return {number: table.read() for number, table in tables.items()}


def keyed_device(
    columns: Sequence[Any], keyed: Mapping[int, KeyedInputs]
) -> AbstractContextManager[Any]:
    """A context of an op that looks up keyed columns: the device of their tables."""
    (table,) = columns[next(iter(keyed))].shards
    return table.beside()


def keyed_inputs(count: int, keyed: Mapping[int, KeyedInputs]) -> dict[str, Any]:
    """The inputs of an op for so many columns, and its attrs, that are of embedding variables."""
    return {
        "keyed_tables": [read.table for read in keyed.values()],
        "initials": [read.initial for read in keyed.values()],
        "indices": [read.index for read in keyed.values()],
        "steps": tf.stack([read.step for read in keyed.values()]),
        "keyed": [number in keyed for number in range(count)],
        "trainable": [number in keyed and keyed[number].trainable for number in range(count)],
        "is_training": [number in keyed and keyed[number].is_training for number in range(count)],
    }
