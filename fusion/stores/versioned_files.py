"""Tables in versions that are folders: the newest of them, as a tier.

A version is opened while another is read, and replaces it by one assignment: calls that have
begun read the old files to their end, which stay open until then. A delta is a folder like any
other, which is asked first; so no row is copied, and none is ever read while it is written.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np

from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.tier import Block, HitMask, Keys, Rows, TableDescription, TierError
from fusion.stores.versions import Version, read_version, version_numbers

_logger = logging.getLogger("fusion")

#: Deltas of more folders are merged: each folder takes time of every fetch, and open files.
_MAX_DELTAS = 4

_BLOCK = 1 << 16


class Layers:
    """Tables whose rows are in several tiers of files: the first that has a key has its row."""

    def __init__(self, tiers: Sequence[LocalFiles]) -> None:
        self.tiers = tuple(tiers)

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """See `Tier.fetch`."""
        has_row = self.tiers[0].fetch(table, keys, rows)
        for tier in self.tiers[1:]:
            rest = np.flatnonzero(~has_row)
            if not len(rest):
                break
            some = np.empty((len(rest), rows.shape[1]), np.float32)
            hits = tier.fetch(table, keys[rest], some)
            rows[rest[hits]], has_row[rest[hits]] = some[hits], True
        return has_row

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        """See `Tier.blocks`."""
        for level, tier in enumerate(self.tiers):
            for keys, rows in tier.blocks(table, size):
                own = ~_have(self.tiers[:level], table, keys, rows)
                yield (keys, rows) if own.all() else (keys[own], rows[own])

    def count(self, table: str) -> int:
        """See `Tier.count`. The keys of all tiers but the last are read."""
        count = self.tiers[-1].count(table)
        for level, tier in enumerate(self.tiers[:-1]):
            for keys, rows in tier.blocks(table, _BLOCK):
                count += int((~_have(self.tiers[level + 1 :], table, keys, rows)).sum())
        return count


def _have(tiers: Sequence[LocalFiles], table: str, keys: Keys, rows: Rows) -> HitMask:
    """A mask [n] of the keys that some tier has; rows [n, dimension] gives the shape."""
    has_row, scratch = np.zeros(len(keys), np.bool_), np.empty(rows.shape, np.float32)
    for tier in tiers:
        has_row |= tier.fetch(table, np.ascontiguousarray(keys), scratch)
    return has_row


@dataclass(frozen=True)
class _Opened:
    """A version that can be read.

    Attributes:
      layers: where its rows are.
      number: its own; None: it is what was read before there was a version.
      whole: the number of the whole version that it is based on, or that it is.
    """

    layers: Layers
    number: int | None = None
    whole: int | None = None


@dataclass(frozen=True)
class VersionChange:
    """The change to a newer version.

    Attributes:
      number: the version's.
      deltas: files with the keys that may have other rows than before; None: any key may.
    """

    number: int
    deltas: tuple[LocalFiles, ...] | None


class VersionedFiles:
    """A tier of the newest version in a folder. It is read only; its methods are those of a `Tier`.

    Which version is read changes in `take_newest` alone.
    """

    name = "mapped"
    is_writable = False

    def __init__(
        self,
        root: str | os.PathLike[str],
        tables: Sequence[TableDescription],
        before: LocalFiles | None = None,
    ) -> None:
        """Opens the newest version that is not broken.

        Args:
          root: where versions are, see `fusion.stores.versions`.
          tables: those that are read.
          before: what is read while there is no version; None: there must be one.

        Raises:
          TierError: there is no version that can be read, and nothing before.
        """
        self.address, self._root = os.fspath(root), Path(root)
        self._tables = {table.name: table for table in tables}
        self._opened = None if before is None else _Opened(Layers([before]))
        self._taking, self._closing = threading.Lock(), threading.Event()
        self._refusals: dict[int, str] = {}
        self._broken: dict[int, tuple[object, str]] = {}
        self.refused_count = 0
        if before is not None:
            return
        try:
            self.take_newest()
        except OSError as error:
            raise self._error("", error) from error
        if self._opened is None:
            reasons = "".join(f"; {reason}" for reason in self._refusals.values())
            raise self._error("", f"has no version that can be read{reasons}")

    @property
    def root(self) -> Path:
        """Where versions are."""
        return self._root

    @property
    def number(self) -> int | None:
        """That of the version that is read; None while there is none."""
        return None if self._opened is None else self._opened.number

    @property
    def refusals(self) -> dict[int, str]:
        """Why versions that are newer than the one that is read are not, by their numbers."""
        return dict(self._refusals)

    def take_newest(self) -> VersionChange | None:
        """Lets the newest version be read, of those that are newer than the one that is.

        One that is broken is refused, which is logged once; its files are looked at again when they
        have changed. Neither is a version read whose base is broken or missing.

        Returns:
          The version that is read from now on; None: it is the one that was.

        Raises:
          OSError: the folder of versions cannot be read.
        """
        with self._taking:
            oldest, refusals, change = self.number, {}, None
            for number in reversed(version_numbers(self._root)):
                if change is not None or (oldest is not None and number <= oldest):
                    break
                try:
                    opened, change = self._open(number)
                except (OSError, ValueError, TierError) as error:
                    if self._closing.is_set():
                        break
                    refusals[number] = self._refused(number, error)
                else:
                    self._opened = opened
            if self._closing.is_set():
                self._opened = None
                return None
            self._refusals = refusals
            if change is not None:
                newer = [key for key in self._broken if key > change.number]
                self._broken = {key: self._broken[key] for key in newer}
            return change

    def open_table(self, table: TableDescription) -> None:
        """Checks that a table is one of those that are read."""
        if self._tables.get(table.name) != table:
            raise self._error(table.name, "is no table that this tier was opened for")

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """See `Tier.fetch`. All rows of a call are of one version."""
        return self._layers.fetch(table, keys, rows)

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        """See `Tier.put`."""
        self._refuse()

    def remove(self, table: str, keys: Keys) -> None:
        """See `Tier.remove`."""
        self._refuse()

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        """See `Tier.blocks`."""
        return self._layers.blocks(table, size)

    def count(self, table: str) -> int:
        """See `Tier.count`."""
        return self._layers.count(table)

    def close(self) -> None:
        """See `Tier.close`. What takes a version at the moment soon ends, and takes none."""
        self._closing.set()
        self._opened = None

    @property
    def _layers(self) -> Layers:
        opened = self._opened
        if opened is None:
            raise self._error("", "is closed")
        return opened.layers

    def _open(self, number: int) -> tuple[_Opened, VersionChange]:
        """Opens a version while another is read.

        Raises:
          OSError, ValueError, TierError: it, or one that it is based on, cannot be read.
        """
        below, base = number, self._known(number)
        versions: list[tuple[int, Version]] = []
        while base is None:
            with _based(number, below):
                version = read_version(self._root / str(below))
                if version.base is not None and version.base >= below:
                    raise ValueError(f"{version.folder}: cannot be based on {version.base}")
            versions.append((below, version))
            if version.base is None:
                break
            below = version.base
            base = self._known(below)
        tiers, added = () if base is None else base.layers.tiers, list[LocalFiles]()
        for below, version in reversed(versions):
            with _based(number, below):
                added.append(self._files(below, version))
            tiers = (added[-1], *tiers)
            if len(tiers) > _MAX_DELTAS + 1:
                tiers = self._merged(tiers)
        whole = versions[-1][0] if base is None else base.whole
        is_next = base is not None and base is self._opened and len(added) <= _MAX_DELTAS
        return _Opened(Layers(tiers), number, whole), VersionChange(
            number, tuple(added) if is_next else None
        )

    def _known(self, number: int) -> _Opened | None:
        """A version that is open: the one that is read, or the whole one below it."""
        opened = self._opened
        if opened is None or opened.whole is None:
            return None
        if number == opened.number:
            return opened
        return (
            _Opened(Layers(opened.layers.tiers[-1:]), number, number)
            if number == opened.whole
            else None
        )

    def _files(self, number: int, version: Version) -> LocalFiles:
        """The files of a version, which are checked first; indices are made.

        Raises:
          OSError, TierError: they cannot be read now.
          ValueError, TierError: they are broken.
        """
        fingerprint = version.fingerprint
        if number in self._broken and self._broken[number][0] == fingerprint:
            raise ValueError(self._broken[number][1])
        try:
            version.check(self._tables.values(), self._closing.is_set)
            names = self._tables.keys() & version.tables.keys()
            return _opened({name: version.tables[name].folder for name in names}, self._tables)
        except (ValueError, TierError) as error:
            if not (isinstance(error, TierError) and isinstance(error.cause, OSError)):
                self._broken[number] = fingerprint, str(error)
            raise

    def _merged(self, tiers: tuple[LocalFiles, ...]) -> tuple[LocalFiles, ...]:
        """All deltas as one, in files that have no name any more; as they are if that fails."""
        deltas = Layers(tiers[:-1])
        try:
            with tempfile.TemporaryDirectory(prefix="fusion-") as folder:
                folders = {}
                for name in self._tables:
                    blocks = deltas.blocks(name, _BLOCK)
                    first = next(blocks, None)
                    if first is not None:
                        folders[name] = Path(folder, name)
                        write_table(folders[name], chain([first], blocks))
                return _opened(folders, self._tables), tiers[-1]
        except (OSError, TierError) as error:
            _logger.warning("%s: deltas cannot be merged (%s)", self.address, error)
            return tiers

    def _refused(self, number: int, error: Exception) -> str:
        """Why a version is refused, which is logged if it is new."""
        reason = str(error)
        if self._refusals.get(number) != reason:
            self.refused_count += 1
            _logger.warning("version %d is refused: %s", number, reason)
        return reason

    def _error(self, table: str, cause: str | Exception) -> TierError:
        return TierError(f"{self.name} versions at {self.address}", table, cause)

    def _refuse(self) -> NoReturn:
        raise io.UnsupportedOperation(f"{self.name} versions at {self.address}: are read only")


def _opened(folders: Mapping[str, Path], tables: Mapping[str, TableDescription]) -> LocalFiles:
    """A tier of tables, those without a folder have no rows.

    Raises:
      TierError: files that cannot be read, or are broken.
    """
    files = LocalFiles(folders)
    for table in tables.values():
        files.open_table(table)
    return files


@contextmanager
def _based(number: int, base: int) -> Iterator[None]:
    """A block whose errors are those of what a version is based on, unless it is its own base."""
    try:
        yield
    except (OSError, ValueError, TierError) as error:
        if base == number:
            raise
        raise ValueError(f"is based on version {base}: {error}") from error
