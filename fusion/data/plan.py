"""Which rows a replica reads, in which order, and where its batches end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` of a row group of a file."""

    file: int
    group: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Part = tuple[Slice, ...]
"""Row groups that are read together."""


def parts_of(rows: Sequence[Sequence[int]], buffer_size: int) -> list[Part]:
    """Row groups that follow each other, of one or several files, by `buffer_size` rows at most.

    A row group that has more is a part of its own.

    Args:
        rows: for each file the rows of its row groups.
        buffer_size: see above.
    """
    parts: list[Part] = []
    slices: list[Slice] = []
    count = 0
    for file, groups in enumerate(rows):
        for group, size in enumerate(groups):
            if slices and count + size > buffer_size:
                parts.append(tuple(slices))
                slices, count = [], 0
            if size:
                slices.append(Slice(file, group, 0, size))
                count += size
    return [*parts, tuple(slices)] if slices else parts


@dataclass(frozen=True)
class Division:
    """The rows and batches of one replica among several: all have the same number of batches.

    Replicas have as many rows, or one more. So one may have its last batch full where others need
    one batch more; then it leaves its last row to that one.

    Attributes:
        total: rows of all replicas.
        batch_size: rows of a batch.
        drop_last: whether all batches have as many.
        size: how many replicas there are.
        rank: which of them it is.
    """

    total: int
    batch_size: int
    drop_last: bool = False
    size: int = 1
    rank: int = 0

    @property
    def first(self) -> int:
        """Its first row, among those of all."""
        return self.rank * self.total // self.size

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return (self.rank + 1) * self.total // self.size - self.first

    @property
    def batches(self) -> int:
        """How many batches each replica has."""
        if self.drop_last:
            return self.total // self.size // self.batch_size
        max_rows = (self.total + self.size - 1) // self.size
        return (max_rows + self.batch_size - 1) // self.batch_size

    def begin(self, batch: int) -> int:
        """The first row of a batch; after the last batch, the end of its rows."""
        begin = batch * self.batch_size
        return min(begin, self._last_begin) if batch == self.batches - 1 else min(begin, self.rows)

    def ends(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The ends of batches in (`start`, `stop`], except the last row."""
        size = self.batch_size
        ends = np.arange((start // size + 1) * size, stop + 1, size, dtype=np.int64)
        if self._is_short and start < self._last_begin <= stop:
            return np.insert(ends, np.searchsorted(ends, self._last_begin), self._last_begin)
        return ends

    @property
    def _is_short(self) -> bool:
        """Whether its rows would be one batch less than others have."""
        return not self.drop_last and self.rows == (self.batches - 1) * self.batch_size

    @property
    def _last_begin(self) -> int:
        """The first row of the last batch, which is empty where batches have one row each."""
        return max(self.rows - (self.batch_size > 1), 0) if self._is_short else self.rows


def chunks_of(parts: Sequence[Part], parts_per_chunk: int, division: Division) -> Iterator[Part]:
    """The rows that a replica reads together, from consecutive parts."""
    own = filter(None, _clipped(parts, division.first, division.first + division.rows))
    while some := [*islice(own, parts_per_chunk)]:
        yield tuple(one for part in some for one in part)


def _clipped(parts: Sequence[Part], first: int, last: int) -> Iterator[Part]:
    """Of each part the rows `first` to `last`, counted from the first part on."""
    begin = 0
    for part in parts:
        inside = []
        for one in part:
            start, stop = max(first - begin, 0), min(last - begin, len(one))
            if start < stop:
                inside.append(Slice(one.file, one.group, start, stop))
            begin += len(one)
        yield tuple(inside)
