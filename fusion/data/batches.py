"""Batches are cut from chunks: by slices, but for one that is in several chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.data.columns import Array, Rows
from fusion.data.plan import Division
from fusion.data.schema import Column, Form


@dataclass(frozen=True)
class Chunk:
    """Rows of a few batches, by column.

    Attributes:
        columns: of each column what `columns.Rows` says.
        rows: how many there are.
    """

    columns: Sequence[Rows]
    rows: int

    def arrays(self) -> list[Array]:
        """Those of all columns: the rows, or of lists the values and the offsets."""
        result: list[Array] = []
        for rows in self.columns:
            result += rows if isinstance(rows, tuple) else [rows]
        return result

    def slice(self, start: int, stop: int) -> Chunk:
        """Rows `start` to `stop`, without a copy of them."""
        if (start, stop) == (0, self.rows):
            return self
        return Chunk([_slice(rows, start, stop) for rows in self.columns], stop - start)


def _slice(rows: Rows, start: int, stop: int) -> Rows:
    if not isinstance(rows, tuple):
        return rows[start:stop]
    values, offsets = rows
    own = offsets[start : stop + 1]
    return values[own[0] : own[-1]], own - own[0]


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk of all rows."""
    if len(chunks) == 1:
        return chunks[0]
    columns = [_joined(parts) for parts in zip(*(one.columns for one in chunks), strict=True)]
    return Chunk(columns, sum(one.rows for one in chunks))


def _joined(parts: Sequence[Rows]) -> Rows:
    dense = [part for part in parts if not isinstance(part, tuple)]
    if dense:
        return np.concatenate(dense)
    lists = [part for part in parts if isinstance(part, tuple)]
    lengths = [np.diff(offsets) for _, offsets in lists]
    offsets = np.concatenate([np.zeros([1], np.int64), np.cumsum(np.concatenate(lengths))])
    return np.concatenate([values for values, _ in lists]), offsets


def cut(chunks: Iterable[Chunk], division: Division, start: int = 0) -> Iterator[tuple[Chunk, int]]:
    """Cuts rows into batches.

    Args:
        chunks: the rows, from the first row of batch `start` on.
        division: of the rows.
        start: which batch is the first.

    Yields:
        Chunks of some batches, which all have the same number of rows, and how many batches.
    """
    remaining = division.batches - start
    position = begin = division.begin(start)
    pending: list[Chunk] = []
    for chunk in chunks:
        stop = position + chunk.rows
        ends = division.ends(position, stop)[:remaining]
        remaining -= len(ends)
        if pending and len(ends):
            begin = int(ends[0])
            yield joined([*pending, chunk.slice(0, begin - position)]), 1
            pending, ends = [], ends[1:]
        for rows, batches in groupby(np.diff(ends, prepend=begin).tolist()):
            count = len([*batches])
            end = begin + rows * count
            yield chunk.slice(begin - position, end - position), count
            begin = end
        if not remaining:
            return
        if begin < stop:
            pending.append(chunk.slice(max(begin - position, 0), chunk.rows))
        position = stop
    if pending and not division.drop_last:
        yield joined(pending), 1


@dataclass(frozen=True)
class Layout:
    """The structure of batches.

    Attributes:
        columns: of the files.
        label_names: those of them that are labels.
        rows: of all batches; None where they vary.
    """

    columns: Sequence[Column]
    label_names: Sequence[str]
    rows: int | None

    def chunk_spec(self) -> list[tf.TensorSpec]:
        """The type specs of `Chunk.arrays`."""
        specs = []
        for column in self.columns:
            is_list = column.form is not None
            specs.append(tf.TensorSpec([None] if is_list else [None, column.width], column.dtype))
            specs += [tf.TensorSpec([None], tf.int64)] * is_list
        return specs

    def batches(self, tensors: Sequence[tf.Tensor], count: tf.Tensor) -> tf.data.Dataset:
        """In a graph: the batches of a chunk.

        Args:
            tensors: `Chunk.arrays`.
            count: how many batches there are, of the same number of rows.
        """
        dense: dict[str, tf.Tensor] = {}
        lists: dict[str, tuple[Column, tf.Tensor, tf.Tensor]] = {}
        rest = iter(tensors)
        for column in self.columns:
            values = next(rest)
            if column.form is None:
                stacked = tf.reshape(values, [count, -1, column.width])
                stacked.set_shape([None, self.rows, column.width])
                dense[column.name] = stacked
            else:
                lists[column.name] = column, values, next(rest)
        # It slices tensors without a call of a function, and mostly without a copy.
        if not lists:
            return tf.data.Dataset.from_tensor_slices(self._structure(dense))

        def with_lists(batch: tf.Tensor, batch_columns: dict[str, tf.Tensor]) -> Any:
            for column, values, offsets in lists.values():
                size = (tf.size(offsets, tf.int64) - 1) // count
                own = offsets[batch * size : (batch + 1) * size + 1]
                own.set_shape([None if self.rows is None else self.rows + 1])
                batch_columns |= _lists(column, values[own[0] : own[-1]], own - own[0])
            return self._structure(batch_columns)

        return tf.data.Dataset.from_tensor_slices((tf.range(count), dense)).map(with_lists)

    def _structure(self, columns: dict[str, tf.Tensor]) -> Any:
        """Features and labels."""
        labels = tuple(columns.pop(name) for name in self.label_names)
        if not labels:
            return columns
        return columns, labels[0] if len(labels) == 1 else labels


def _lists(column: Column, values: tf.Tensor, offsets: tf.Tensor) -> dict[str, tf.Tensor]:
    name = column.name
    if column.form is Form.OFFSETS:
        return {f"{name}__values": values, f"{name}__offsets": offsets}
    ragged = tf.RaggedTensor.from_row_splits(values, offsets, validate=False)
    if column.form is Form.RAGGED:
        return {name: ragged}
    if column.form is Form.DENSE:
        return {name: ragged.to_tensor(shape=[None, column.longest])}
    sparse = ragged.to_sparse()
    if column.longest is not None:
        shape = tf.stack([sparse.dense_shape[0], column.longest])
        sparse = tf.SparseTensor(sparse.indices, sparse.values, shape)
    return {name: sparse}
