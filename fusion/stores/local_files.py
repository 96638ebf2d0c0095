"""Tables in files, mapped into memory: `fusion split` writes them, and HugeCTR.

A table is a folder of two files, `key` and `emb_vector` (see `fusion.tables.files`). Rows are read
where they are: all processes of a machine share their pages, which the system reads when they are
touched and drops when memory is short. A hash index in a file next to them has the row of each key.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np

from fusion.stores.hash_index import HashIndex, KeyFile, open_index
from fusion.stores.open_file import OpenFile
from fusion.stores.tier import (
    Block,
    Blocks,
    HitMask,
    Keys,
    Rows,
    TableDescription,
    TierError,
    check_fetch,
    check_rows,
    dimension_of,
)
from fusion.tables import files

_PathLike = str | os.PathLike[str]


class LocalFiles:
    """A tier of tables in files. It is read only; its methods are those of a `Tier`."""

    name = "mapped"
    is_writable = False

    def __init__(self, folders: _PathLike | Mapping[str, _PathLike]) -> None:
        """Makes a tier without tables.

        Args:
          folders: one folder that has those of all tables by their names, or the folder of each
            table by its name; tables without one have no rows.
        """
        self._folders = folders
        self._tables: dict[str, _Table | _NoTable] = {}
        self.address = (
            ", ".join(sorted({str(Path(folder).parent) for folder in folders.values()}))
            if isinstance(folders, Mapping)
            else os.fspath(folders)
        )

    def open_table(self, table: TableDescription) -> None:
        """Opens a table, or what is in its folder now in place of what was.

        Raises:
          TierError: there is no such table, or it is damaged, of another dimension, or has a key
            twice.
        """
        try:
            folder = self._folder(table.name)
            self._tables[table.name] = (
                _NoTable(table.dimension) if folder is None else _opened(folder, table.dimension)
            )
        except (OSError, ValueError) as error:
            raise self._error(table.name, error) from error

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """See `Tier.fetch`."""
        opened = self._tables[table]
        check_fetch(opened.dimension, keys, rows)
        try:
            return opened.fetch(keys, rows)
        except (OSError, ValueError) as error:
            raise self._error(table, error) from error

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        """See `Tier.put`."""
        self._refuse()

    def remove(self, table: str, keys: Keys) -> None:
        """See `Tier.remove`."""
        self._refuse()

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        """See `Tier.blocks`."""
        opened = self._tables[table]
        for first in range(0, opened.count, size):
            try:
                block = opened.read(first, min(size, opened.count - first))
            except (OSError, ValueError) as error:
                raise self._error(table, error) from error
            yield block

    def count(self, table: str) -> int:
        """See `Tier.count`."""
        return self._tables[table].count

    def close(self) -> None:
        """See `Tier.close`."""
        self._tables.clear()

    def _folder(self, table: str) -> Path | None:
        if not isinstance(self._folders, Mapping):
            return Path(self._folders) / table
        return Path(self._folders[table]) if table in self._folders else None

    def _error(self, table: str, cause: Exception) -> TierError:
        return TierError(f"{self.name} files at {self.address}", table, cause)

    def _refuse(self) -> NoReturn:
        raise io.UnsupportedOperation(f"{self.name} files at {self.address}: are read only")


class _Table:
    """An open table, which stays open while it is read."""

    def __init__(self, folder: Path, dimension: int) -> None:
        """Opens it.

        Raises:
          OSError: there are no such files.
          ValueError: they are damaged.
        """
        files.open_table(folder, dimension)
        self.dimension = dimension
        self._keys = KeyFile(folder / files.KEYS)
        self.count = self._keys.count
        self._file = OpenFile(folder / files.ROWS)
        self._check_size()
        self._rows = self._file.mapped("<f4")
        self._index: HashIndex = open_index(folder, self._keys)

    def fetch(self, keys: Keys, rows: Rows) -> HitMask:
        # What is mapped beyond the end of a file kills the process that reads it.
        self._check_size()
        return self._index.look_up(np.ascontiguousarray(keys), self._rows.ctypes.data, rows)

    def read(self, first: int, count: int) -> Block:
        size = 4 * self.dimension
        content = self._file.read(first * size, count * size)
        rows = np.frombuffer(content, "<f4").reshape(count, self.dimension)
        return self._keys.read(first, count), rows

    def _check_size(self) -> None:
        size, expected = self._file.status.st_size, 4 * self.count * self.dimension
        if size != expected:
            raise ValueError(
                f"{self._file.name}: has {size} bytes, but {self.count} rows of dimension "
                f"{self.dimension} have {expected}"
            )


def _opened(folder: Path, dimension: int) -> _Table:
    """Opens a table: all its files are of one folder, also if another takes its place meanwhile.

    Raises:
      OSError, ValueError: as of `_Table`.
    """
    while True:
        before = os.stat(folder)
        try:
            table = _Table(folder, dimension)
        except (OSError, ValueError):
            if os.path.samestat(before, os.stat(folder)):
                raise
        else:
            if os.path.samestat(before, os.stat(folder)):
                return table


class _NoTable:
    """A table without a folder."""

    count = 0

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def fetch(self, keys: Keys, rows: Rows) -> HitMask:
        return np.zeros(len(keys), np.bool_)

    def read(self, first: int, count: int) -> Block:
        raise IndexError(first)


def write_table(folder: _PathLike, blocks: Blocks) -> int:
    """Writes the files of a table, whole or not at all, with a block in memory at a time.

    Args:
      folder: which must not be there.
      blocks: keys [n] and rows [n, dimension], at least one block. Keys are distinct in all of
        them, which is checked when the table is opened.

    Returns:
      How many rows it has.

    Raises:
      FileExistsError: there is something at `folder`.
      ValueError: no block, or blocks of other shapes or dtypes.
      TypeError: blocks of something else than arrays.
    """
    iterator = iter(blocks)
    first = next(iterator, None)
    if first is None:
        raise ValueError(f"{folder}: a table of no block has no dimension")
    dimension = dimension_of(*first)

    def checked() -> Iterator[Block]:
        for block in chain([first], iterator):
            check_rows(dimension, *block)
            yield block

    return files.write_table(folder, dimension, checked(), {})
