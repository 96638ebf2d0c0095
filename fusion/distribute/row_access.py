"""Rows of tables with their optimizer variables, read and written by keys in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.distribute.layout import Layout
from fusion.tables import exchange, files
from fusion.tables.embedding_variable import EmbeddingVariable
from fusion.tables.files import Array, ArrayFile
from fusion.tables.keyed_rows import gather_rows, put_rows
from fusion.tables.partitioned import PartitionedEmbeddingVariable

#: Keys [n], and the rows [n, D] of a table and of each of its optimizer variables.
Block = tuple[Array, list[Array]]


class NumberedRows:
    """The rows of a sharded table, or of a variable, whose keys are their numbers."""

    def __init__(
        self, name: str, layout: Layout, shards: Mapping[int, Sequence[Sequence[Any]]]
    ) -> None:
        """Makes what reads and writes them.

        Args:
          name: of the table.
          layout: which replica has which.
          shards: by the number of the replica, its copies of a shard: lists of the shard's variable
            and of those of optimizers.
        """
        self.name, self._layout, self._shards = name, layout, shards

    def blocks(self) -> Iterator[Block]:
        """All rows, in ascending order."""
        for first in range(0, self._layout.rows, files.CHUNK_ROWS):
            keys = np.arange(first, min(first + files.CHUNK_ROWS, self._layout.rows))
            parts = [(mask, copies[0], own) for mask, own, copies in self._owners(keys)]
            (_, variables, _), *_ = parts
            rows = [
                np.empty([len(keys), int(variable.shape[1])], variable.dtype.as_numpy_dtype)
                for variable in variables
            ]
            for mask, variables, own in parts:
                for whole, variable in zip(rows, variables, strict=True):
                    whole[mask] = gather_rows(variable, own).numpy()
            yield keys, rows

    def _owners(self, keys: Array) -> Iterator[tuple[Array, Array, Sequence[Sequence[Any]]]]:
        """Which keys a shard of this process has, their rows there, and the copies of the shard."""
        for replica, copies in self._shards.items():
            owned = self._layout.rows_of(replica)
            if owned:
                mask = (keys - owned.start) % owned.step == 0
                yield mask, (keys[mask] - owned.start) // owned.step, copies

    def check(self, path: Path, blocks: Iterator[Array]) -> None:
        """Checks keys before any row is written.

        Raises:
          ValueError: a key without a row here, or one that is there more than once.
        """
        seen, count = np.zeros(self._layout.rows, np.bool_), 0
        for keys in blocks:
            bad = keys[(keys < 0) | (keys >= self._layout.rows)]
            if len(bad):
                raise ValueError(
                    f"{path}: has key {bad[0]}, and table {self.name!r} has rows 0 to "
                    f"{self._layout.rows - 1}"
                )
            seen[keys] = True
            count += len(keys)
        if np.count_nonzero(seen) < count:
            raise ValueError(f"{path}: has a key more than once")

    def put(self, keys: Array, rows: Sequence[Array]) -> None:
        """Writes rows of keys."""
        for mask, own, copies in self._owners(keys):
            for variables in copies:
                for variable, values in zip(variables, rows, strict=True):
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=variable.handle,
                        indices=own,
                        updates=tf.cast(values[mask], variable.dtype),
                    )


class KeyedRows:
    """The rows of an embedding variable that belong to keys."""

    def __init__(
        self,
        name: str,
        table: EmbeddingVariable | PartitionedEmbeddingVariable,
        slots: Sequence[Sequence[Any]],
    ) -> None:
        """Makes what reads and writes them.

        Args:
          name, table: of the embedding variable.
          slots: of each partition, the variables of optimizers.
        """
        self.name, self._key_dtype = name, table.key_dtype
        self._partitions = list(zip(partitions_of(table), slots, strict=True))

    def blocks(self) -> Iterator[Block]:
        """The rows of all keys that have one."""
        for partition, slots in self._partitions:
            entries = ops.embedding_key_entries(index=partition.index.handle)
            partition.fill_slots()
            yield from exchange.blocks([partition.table, *slots], partition.index, entries)

    def check(self, path: Path, blocks: Iterator[Array]) -> None:
        """Checks keys before any row is written.

        Raises:
          ValueError: a key that `key_dtype` does not have.
        """
        is_int32 = self._key_dtype == tf.int32
        for keys in blocks:
            bad = keys[keys != keys.astype(np.int32)] if is_int32 else keys[:0]
            if len(bad):
                raise ValueError(
                    f"{path}: has key {bad[0]}, and embedding variable {self.name!r} has int32 keys"
                )

    def put(self, keys: Array, rows: Sequence[Array]) -> None:
        """Writes rows of keys, which get one if they have none.

        Raises:
          tf.errors.ResourceExhaustedError: there is no room for all keys.
        """
        for partition, slots in self._partitions:
            whole = partition.partition
            own = np.ones(len(keys), np.bool_) if whole is None else whole.is_of(keys).numpy()
            own_keys, values = tf.constant(keys[own]), tf.cast(rows[0][own], partition.dtype)
            put_rows(own_keys, values, partition.table, partition.index)
            for slot, some in zip(slots, rows[1:], strict=True):
                partition.put_slot_rows(own_keys, some[own], slot)


def partitions_of(
    table: EmbeddingVariable | PartitionedEmbeddingVariable,
) -> list[EmbeddingVariable]:
    """The partitions of an embedding variable; itself if it has none."""
    return table.partitions if isinstance(table, PartitionedEmbeddingVariable) else [table]


def int64_blocks(file: ArrayFile) -> Iterator[Array]:
    """Keys of a file.

    Raises:
      ValueError: one that is no int64.
    """
    for keys in file.blocks():
        bad = keys[keys > np.iinfo(np.int64).max]
        if len(bad):
            raise ValueError(f"{file.path}: has key {bad[0]}, which is no int64")
        yield keys.astype(np.int64, copy=False)
