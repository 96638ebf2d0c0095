"""Versions of tables: folders that appear beside each other, each whole or not at all.

    ROOT/12/items/key            int64 [rows], little endian
    ROOT/12/items/emb_vector     float32 [rows, dimension]
    ROOT/12/version.json         what the version is, with rows, dimensions and checksums of tables

The name of a folder is the number of its version; newer ones have higher numbers. A version is
*whole*, with all tables and all of their rows, or a *delta*: rows that are added to an older
version, its base, or replace rows of it. What `fusion split` has made is a whole version too, which
has no checksums.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusion.stores import hash_index
from fusion.stores.hash_index import KeyFile, open_index
from fusion.stores.tier import Block, Blocks, TableDescription, check_rows, dimension_of
from fusion.tables import files

_PathLike = str | os.PathLike[str]

_FILE = "version.json"

#: What `fusion split` writes, and where the tables are beside it.
_SPLIT_FILE, _SPLIT_TABLES = "fusion.json", "tables"

_BYTES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class TableFiles:
    """A table of a version.

    Attributes:
      folder: where its files are.
      dimension: elements of a row.
      rows: how many there are.
      checksums: CRC-32 of the files by their names; empty if they are not known.
    """

    folder: Path
    dimension: int
    rows: int
    checksums: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """A version, as it describes itself.

    Attributes:
      folder: where it is.
      base: the number of the version whose rows it adds to; None: it is whole.
      tables: by their names.
    """

    folder: Path
    base: int | None
    tables: Mapping[str, TableFiles]

    def check(
        self, tables: Iterable[TableDescription], is_closing: Callable[[], bool] = lambda: False
    ) -> None:
        """Checks the files of those tables that a store has: sizes first, then checksums.

        Keys are not compared with each other, which happens when they are opened.

        Args:
          tables: of the store.
          is_closing: whether there is no need to go on.

        Raises:
          OSError: a file cannot be read; `InterruptedError` where `is_closing`.
          ValueError: a table is missing in a whole version, has another dimension, or has files of
            other sizes or checksums.
        """
        checked = []
        for table in tables:
            if table.name not in self.tables:
                if self.base is None:
                    raise ValueError(f"{self.folder}: is whole, and has no table {table.name}")
                continue
            own = self.tables[table.name]
            if own.dimension != table.dimension:
                raise ValueError(
                    f"{own.folder}: has dimension {own.dimension}, not {table.dimension}"
                )
            checked.append(own)
        for own in checked:
            for name, size in ((files.KEYS, 8), (files.ROWS, 4 * own.dimension)):
                actual = os.path.getsize(own.folder / name)
                if actual != size * own.rows:
                    raise ValueError(
                        f"{own.folder / name}: has {actual} bytes, not {size * own.rows}"
                    )
        for own in checked:
            for name, expected in own.checksums.items():
                if _checksum(own.folder / name, is_closing) != expected:
                    raise ValueError(f"{own.folder / name}: its checksum is wrong")

    @property
    def fingerprint(self) -> object:
        """Another one where a file was changed, replaced, added or removed, but for indices."""
        return sorted(
            (path, status.st_size, status.st_mtime_ns, status.st_ino)
            for path, status in _files_below(self.folder)
        )


def version_numbers(root: _PathLike) -> list[int]:
    """The numbers of the folders that may be versions, ascending.

    Raises:
      OSError: there is no such folder.
    """
    names = [entry.name for entry in os.scandir(root) if entry.name.isdecimal() and entry.is_dir()]
    return sorted(int(name) for name in names if str(int(name)) == name)


def is_version(folder: _PathLike) -> bool:
    """Whether a folder says that it is a version, or a split model."""
    return any(Path(folder, name).exists() for name in (_FILE, _SPLIT_FILE))


def read_version(folder: _PathLike) -> Version:
    """What a folder says that it is; nothing else of it is read.

    Raises:
      OSError: it cannot be read.
      ValueError: it is neither a version nor a split model, or says what cannot be.
    """
    folder = Path(folder)
    for name, read in ((_FILE, _of_version), (_SPLIT_FILE, _of_split)):
        if (folder / name).exists():
            try:
                return read(folder, json.loads((folder / name).read_text(encoding="utf-8")))
            except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
                cause = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"{folder / name}: does not say what it should ({cause})"
                ) from error
    raise ValueError(f"{folder}: has no {_FILE}, and is no split model")


def _of_version(folder: Path, facts: dict[str, Any]) -> Version:
    base = None if facts["kind"] == "whole" else int(facts["base"])
    if facts["kind"] not in ("whole", "delta"):
        raise ValueError(f"kind {facts['kind']!r}")
    tables = {}
    for name, about in facts["tables"].items():
        _ = TableDescription(name, about["dimension"])  # is checked
        checksums = {file: int(about["crc32"][file], 16) for file in (files.KEYS, files.ROWS)}
        tables[name] = TableFiles(folder / name, about["dimension"], int(about["rows"]), checksums)
    return Version(folder, base, tables)


def _of_split(folder: Path, facts: dict[str, Any]) -> Version:
    if facts["kind"] != "split":
        raise ValueError(f"kind {facts['kind']!r}")
    tables = {}
    for about in facts["tables"]:
        name = TableDescription(about["name"], about["dimension"]).name
        own = folder / _SPLIT_TABLES / name
        tables[name] = TableFiles(own, about["dimension"], int(about["rows"]))
    return Version(folder, None, tables)


def write_version(
    root: _PathLike,
    number: int,
    tables: Mapping[str, _PathLike | Blocks],
    base: int | None = None,
) -> Path:
    """Writes a version, which appears when all of it is on the disk, or not at all.

    A block of rows is in memory at a time. Keys are compared with each other, and the index is
    written that readers need.

    Args:
      root: the folder of versions; it is made if it is not there.
      number: of the version; readers take the highest one.
      tables: by their names, each the folder of a table as `fusion split` and HugeCTR write it, or
        blocks: keys int64 [n] and rows float32 [n, dimension], at least one.
      base: the number of the version whose rows these are added to, or replace; None: the version
        is whole.

    Returns:
      Its folder.

    Raises:
      FileExistsError: there is such a version.
      OSError: it cannot be written, such as on a full disk.
      ValueError: a number that cannot be, no table, no block, blocks of other shapes or dtypes, or
        a key that is there twice.
      TypeError: blocks of something else than arrays.
    """
    if number < 0 or (base is not None and base < 0):
        raise ValueError(f"number and base must be at least 0, got {number} and {base}")
    return write_version_folder(Path(root, str(number)), tables, base)


def write_version_folder(
    folder: Path, tables: Mapping[str, _PathLike | Blocks], base: int | None = None
) -> Path:
    """Writes a version to a folder of any name, see `write_version`."""
    if base is not None and folder.name.isdecimal() and int(folder.name) <= base:
        raise ValueError(f"{folder}: the number of a version must be above its base, {base}")
    if not tables:
        raise ValueError("tables must not be empty")
    os.makedirs(folder.parent, exist_ok=True)
    with files.new_folder(folder) as staging:
        about = {name: _write_table(staging, name, source) for name, source in tables.items()}
        kind = {"kind": "whole"} if base is None else {"kind": "delta", "base": base}
        with files.new_file(staging / _FILE) as file:
            file.write((json.dumps({**kind, "tables": about}, indent=1) + "\n").encode())
        _sync_folder(staging)
    _sync_folder(folder.parent)
    return folder


def _write_table(staging: Path, name: str, source: _PathLike | Blocks) -> dict[str, Any]:
    """Writes the files of a table; what `version.json` says of them."""
    if isinstance(source, str | os.PathLike):
        dimension = files.dimension_of(source)
        iterator: Iterator[Block] = files.read_table(source, dimension)
    else:
        iterator = iter(source)
        first = next(iterator, None)
        if first is None:
            raise ValueError(f"table {name}: has no block, from which to know its dimension")
        dimension = dimension_of(*first)
        iterator = _chained(first, iterator)
    _ = TableDescription(name, dimension)  # is checked
    checksums = {files.KEYS: 0, files.ROWS: 0}

    def summed() -> Iterator[Block]:
        for keys, rows in iterator:
            check_rows(dimension, keys, rows)
            for file, array, dtype in ((files.KEYS, keys, "<i8"), (files.ROWS, rows, "<f4")):
                content = np.ascontiguousarray(array, dtype)
                checksums[file] = zlib.crc32(
                    content.reshape(-1).view(np.uint8).data, checksums[file]
                )
            yield keys, rows

    folder = staging / name
    folder.mkdir()
    count = files.write_files(folder, dimension, summed(), {})
    open_index(folder, KeyFile(folder / files.KEYS))  # keys are distinct
    _sync_folder(folder)
    crc32 = {file: f"{checksum:08x}" for file, checksum in checksums.items()}
    return {"rows": count, "dimension": dimension, "crc32": crc32}


def _chained(first: Block, rest: Iterator[Block]) -> Iterator[Block]:
    yield first
    yield from rest


def _checksum(path: Path, is_closing: Callable[[], bool]) -> int:
    """CRC-32 of a file."""
    checksum = 0
    with open(path, "rb", buffering=0) as file:
        while content := file.read(_BYTES_AT_ONCE):
            if is_closing():
                raise InterruptedError(f"{path}: need not be read any more")
            checksum = zlib.crc32(content, checksum)
    return checksum


def _sync_folder(folder: Path) -> None:
    """Has the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(hash_index.NAME):
                path = os.path.join(parent, name)
                yield path, os.stat(path)
