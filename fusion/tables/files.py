"""Tables as files: `key`, int64, and `emb_vector`, float32 rows, as NVIDIA's HPS reads them.

A folder has a `manifest.json` beside them, which says how many rows there are and of which size.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Rows that are in memory at a time.
CHUNK_ROWS = 1 << 18

_KEYS, _ROWS, _MANIFEST = "key", "emb_vector", "manifest.json"


def write_table(
    path: str | os.PathLike[str],
    dimension: int,
    parts: Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
    about: dict[str, Any],
) -> int:
    """Writes a folder, whole or not at all; returns how many rows it has.

    Args:
      path: the folder, which must not be there.
      dimension: of rows.
      parts: keys [n] and rows [n, D], one part after the other.
      about: what else the manifest says.

    Raises:
      FileExistsError: there is something at `path`.
    """
    folder = Path(os.path.abspath(path))
    if os.path.lexists(folder):
        raise FileExistsError(f"{path}: already exists; choose a new path or remove it first")
    with tempfile.TemporaryDirectory(prefix=".fusion-", dir=folder.parent) as private:
        staging = Path(private) / "table"
        staging.mkdir()
        count = 0
        with open(staging / _KEYS, "wb") as keys, open(staging / _ROWS, "wb") as rows:
            for some_keys, some_rows in parts:
                some_keys.astype("<i8", copy=False).tofile(keys)
                some_rows.astype("<f4", copy=False).tofile(rows)
                count += len(some_keys)
            for file in (keys, rows):
                file.flush()
                os.fsync(file.fileno())
        manifest = {"rows": count, "dimension": dimension, **about}
        with open(staging / _MANIFEST, "w", encoding="utf-8") as text:
            json.dump(manifest, text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        os.rename(staging, folder)
    return count


def read_table(
    path: str | os.PathLike[str], dimension: int
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """The keys [n] and rows [n, D] of a folder, one part after the other.

    It needs no manifest: others write none.

    Raises:
      FileNotFoundError: there are no such files.
      ValueError: rows of another dimension, or files that do not belong together.
    """
    folder = Path(path)
    key_bytes, size = os.path.getsize(folder / _KEYS), os.path.getsize(folder / _ROWS)
    count = key_bytes // 8
    if key_bytes % 8 != 0 or size != 4 * count * dimension:
        raise ValueError(
            f"{path}: has {key_bytes} bytes of keys and {size} of rows, which are not rows of "
            f"dimension {dimension}"
        )
    _check_manifest(folder, count, dimension)
    if count == 0:
        return  # nothing can be mapped
    keys = np.memmap(folder / _KEYS, "<i8", "r")
    rows = np.memmap(folder / _ROWS, "<f4", "r", shape=(count, dimension))
    for first in range(0, count, CHUNK_ROWS):
        yield np.array(keys[first : first + CHUNK_ROWS]), np.array(rows[first : first + CHUNK_ROWS])


def _check_manifest(folder: Path, count: int, dimension: int) -> None:
    path = folder / _MANIFEST
    if not path.exists():
        return
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if (manifest.get("rows"), manifest.get("dimension")) != (count, dimension):
        raise ValueError(
            f"{path}: is of {manifest.get('rows')} rows of dimension {manifest.get('dimension')}, "
            f"but there are {count} of {dimension}"
        )
