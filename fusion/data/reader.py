"""Reads slices of files as chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fusion.data.batches import Chunk
from fusion.data.columns import Array, in_order, no_rows, without_nulls
from fusion.data.files import DataError, File
from fusion.data.plan import Part, Slice
from fusion.data.schema import Column


@dataclass(frozen=True)
class Skipped:
    """Rows that were left out.

    Attributes:
        path: the file.
        rows: how many; None where that is not known.
        reason: why they cannot be read.
    """

    path: str
    rows: int | None
    reason: str


@dataclass(frozen=True)
class Reader:
    """Reads files.

    Attributes:
        files: which.
        columns: of each of them.
        on_skip: called with what cannot be read, in place of raising an error; None to raise it.
    """

    files: Sequence[File]
    columns: Sequence[Column]
    on_skip: Callable[[Skipped], None] | None = None

    def read(self, part: Part, order: Callable[[int], Array] | None = None) -> Chunk:
        """The rows of slices.

        Args:
            part: slices; of a file and in its order, if they follow each other.
            order: how many rows there are -> which of them comes at each position.

        Raises:
            DataError: a file cannot be read, or has nulls or values that it must not have.
        """
        runs: list[list[list[pa.Array]]] = []
        rows = 0
        for run in _runs(part):
            size = sum(map(len, run))
            try:
                runs.append(self._read(run))
                rows += size
            except DataError as error:
                if self.on_skip is None:
                    raise
                self.on_skip(Skipped(self.files[run[0].file].path, size, str(error)))
        if not rows:
            return Chunk([no_rows(column) for column in self.columns], 0)
        wanted = None if order is None else order(rows)
        columns = []
        for place, column in enumerate(self.columns):
            arrays = [array for one in runs for array in one[place]]
            for one in runs:
                one[place] = []  # so that a chunk is not in memory twice
            columns.append(in_order(column, arrays, wanted))
        return Chunk(columns, rows)

    def _read(self, run: Sequence[Slice]) -> list[list[pa.Array]]:
        """The columns of slices of a file, of which only the outer two may have fewer rows."""
        file = self.files[run[0].file]
        groups = [one.group for one in run]
        with file.opened() as opened:
            try:
                names = [c.name for c in self.columns if c.name not in file.constants]
                table: Any = opened.read_row_groups(groups, columns=names)
            except (pa.ArrowException, OSError) as error:
                broken = [name for name in names if not _is_readable(opened, groups, name)]
                raise DataError(
                    f"{file.path}: column {', '.join(broken)} cannot be read in row groups "
                    f"{groups[0]} to {groups[-1]}: {error}"
                ) from error
        wanted = sum(map(len, run))
        if len(table) < run[0].start + wanted:
            raise DataError(f"{file.path}: has {len(table)} rows where its footer says more")
        table = table.slice(run[0].start, wanted)
        arrays = dict(zip(table.column_names, table.columns, strict=True))
        for name, value in file.constants.items():
            arrays[name] = pa.chunked_array([pa.repeat(value, wanted)])
        return [without_nulls(column, arrays[column.name], file.path) for column in self.columns]


def _is_readable(file: pq.ParquetFile, groups: Sequence[int], name: str) -> bool:
    try:
        file.read_row_groups(groups, columns=[name])
    except (pa.ArrowException, OSError):
        return False
    return True


def _runs(part: Part) -> Iterator[list[Slice]]:
    """Runs of slices that one read returns: consecutive ones of a file."""
    if not part:
        return
    run = [part[0]]
    for before, one in pairwise(part):
        if one.file != before.file or one.group != before.group + 1:
            yield run
            run = []
        run.append(one)
    yield run
