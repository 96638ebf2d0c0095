"""Batches are cut from chunks: by slices, but for one that is in several chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from fusion.data.columns import Array, Rows
from fusion.data.plan import Division
from fusion.data.schema import Column, Form


@dataclass(frozen=True)
class Chunk:
    """Rows.

    Attributes:
        columns: of each column what `columns.Rows` says.
        rows: how many there are.
    """

    columns: Sequence[Rows]
    rows: int

    def arrays(self) -> list[Array]:
        """Those of all columns: the rows, or of lists the values and the offsets."""
        found: list[Array] = []
        for rows in self.columns:
            found += rows if isinstance(rows, tuple) else [rows]
        return found

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


def cut(
    chunks: Iterable[Chunk], division: Division, start: int = 0
) -> Iterator[tuple[Chunk, Array]]:
    """Cuts rows into batches.

    Args:
        chunks: the rows, from the first row of batch `start` on.
        division: of the rows.
        start: which batch is the first.

    Yields:
        Chunks of whole batches, and where these begin and the last one ends, int64 [batches + 1].
    """
    left = division.batches - start
    position = begin = division.begin(start)
    held: list[Chunk] = []
    for chunk in chunks:
        stop = position + chunk.rows
        ends = division.ends(position, stop)[:left]
        left -= len(ends)
        if held and len(ends):
            whole = joined([*held, chunk.slice(0, int(ends[0]) - position)])
            yield whole, np.array([0, whole.rows])
            held, begin, ends = [], int(ends[0]), ends[1:]
        if len(ends):
            end = int(ends[-1])
            yield chunk.slice(begin - position, end - position), np.array([begin, *ends]) - begin
            begin = end
        if not left:
            return
        if begin < stop:
            held.append(chunk.slice(begin - position, chunk.rows))
        position = stop
    if held and not division.drop_last:
        whole = joined(held)
        yield whole, np.array([0, whole.rows])


def batches_of(
    columns: Sequence[Column], tensors: Sequence[tf.Tensor], splits: tf.Tensor
) -> tf.data.Dataset:
    """In a graph: the batches of a chunk, dictionaries of tensors by name.

    Args:
        columns: what the tensors are of.
        tensors: of each column the rows, [rows, width], or of lists the values and the offsets.
        splits: int64 [batches + 1], see `cut`.
    """

    def batch(start: tf.Tensor, stop: tf.Tensor) -> dict[str, tf.Tensor]:
        found: dict[str, tf.Tensor] = {}
        rest = iter(tensors)
        for column in columns:
            if column.form is None:
                found[column.name] = next(rest)[start:stop]
            else:
                found |= _lists(column, next(rest), next(rest)[start : stop + 1])
        return found

    return tf.data.Dataset.from_tensor_slices((splits[:-1], splits[1:])).map(batch)


def _lists(column: Column, values: tf.Tensor, offsets: tf.Tensor) -> dict[str, tf.Tensor]:
    values = values[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
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
