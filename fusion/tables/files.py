"""Tables as files of HugeCTR: folders, as its trainer, TensorFlow plugin and HPS have them.

For n keys there are these arrays, little-endian and without a header, in the same order:

    key         int64 [n], also where HugeCTR computes with uint32
    emb_vector  float32 [n, D]
    slot_id     uint64 [n], for localized embeddings alone: slot s is on GPU s % (number of GPUs)

The source is NVIDIA-Merlin/HugeCTR: `save_params_to_files` in docs/source/api/python_interface.md,
and distributed_ and localized_slot_sparse_embedding_hash.cu in HugeCTR/src/embeddings.

A folder that is written here has a `manifest.json` beside them, which says how many rows there are
and of which size.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

#: Rows that are in memory at a time.
CHUNK_ROWS = 1 << 18

#: The files of keys and of rows.
KEYS, ROWS = "key", "emb_vector"
_SLOTS, _MANIFEST = "slot_id", "manifest.json"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file.

    Attributes:
      path: the file.
      dtype: of the elements, as NumPy writes it.
      shape: of what an index of the first axis gives: () or (D,).
      header_bytes: how many come before the array.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...] = ()
    header_bytes: int = 0

    def __len__(self) -> int:
        """The size of the first axis.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: it ends within a row.
        """
        size = os.path.getsize(self.path) - self.header_bytes
        if size < 0 or size % self._row_bytes:
            raise ValueError(
                f"{self.path}: has {size} bytes behind its header, which are not rows of "
                f"{math.prod(self.shape)} {np.dtype(self.dtype).name}"
            )
        return size // self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def blocks(self) -> Iterator[Array]:
        """The array [n, ...], of at most `CHUNK_ROWS` at a time."""
        for first in range(0, len(self), CHUNK_ROWS):
            elements = np.fromfile(
                self.path,
                self.dtype,
                CHUNK_ROWS * math.prod(self.shape),
                offset=self.header_bytes + first * self._row_bytes,
            )
            yield elements.reshape(-1, *self.shape)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to be filled, which is at `path` when all is written, or not at all.

    Raises:
      FileExistsError: there is something at `path`.
    """
    folder = Path(os.path.abspath(path))
    if os.path.lexists(folder):
        raise FileExistsError(f"{path}: already exists; choose a new path or remove it first")
    with tempfile.TemporaryDirectory(prefix=".fusion-", dir=folder.parent) as private:
        staging = Path(private) / "table"
        staging.mkdir()
        yield staging
        os.rename(staging, folder)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written, which is on the disk in the end."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_table(
    path: str | os.PathLike[str],
    dimension: int,
    parts: Iterator[tuple[Array, Array]],
    about: dict[str, Any],
) -> int:
    """Writes a folder, whole or not at all; returns how many rows it has.

    Args:
      path: the folder, which must not be there.
      dimension, parts, about: as of `write_files`.

    Raises:
      FileExistsError: there is something at `path`.
    """
    with new_folder(path) as folder:
        return write_files(folder, dimension, parts, about)


def write_files(
    folder: Path,
    dimension: int,
    parts: Iterator[tuple[Array, Array]],
    about: dict[str, Any],
    slot: int | None = None,
) -> int:
    """Writes the files of a table; returns how many rows they have.

    Args:
      folder: where to.
      dimension: of rows.
      parts: keys [n] and rows [n, D], one part after the other.
      about: what else the manifest says.
      slot: the `slot_id` of all keys; None for no such file.
    """
    count = 0
    with contextlib.ExitStack() as stack:
        keys, rows = (stack.enter_context(new_file(folder / name)) for name in (KEYS, ROWS))
        slots = None if slot is None else stack.enter_context(new_file(folder / _SLOTS))
        for some_keys, some_rows in parts:
            some_keys.astype("<i8", copy=False).tofile(keys)
            some_rows.astype("<f4", copy=False).tofile(rows)
            if slots is not None:
                np.full(len(some_keys), slot, "<u8").tofile(slots)
            count += len(some_keys)
    manifest = {"rows": count, "dimension": dimension, **about}
    with new_file(folder / _MANIFEST) as text:
        text.write(json.dumps(manifest, indent=1).encode())
    return count


def is_table(folder: Path) -> bool:
    """Whether a folder has keys."""
    return (folder / KEYS).exists()


def open_table(path: str | os.PathLike[str], dimension: int) -> tuple[ArrayFile, ArrayFile]:
    """The keys [n] and rows [n, D] of a folder.

    It needs no manifest: others write none. Slots are checked, and mean nothing here.

    Raises:
      FileNotFoundError: there are no such files.
      ValueError: rows of another dimension, or files that do not belong together.
    """
    folder = Path(path)
    key_bytes, size = os.path.getsize(folder / KEYS), os.path.getsize(folder / ROWS)
    count = key_bytes // 8
    if key_bytes % 8 != 0 or size != 4 * count * dimension:
        raise ValueError(
            f"{path}: has {key_bytes} bytes of keys and {size} of rows, which are not rows of "
            f"dimension {dimension}"
        )
    slots = ArrayFile(folder / _SLOTS, "<u8")
    if slots.path.exists() and len(slots) != count:
        raise ValueError(f"{slots.path}: has slots of {len(slots)} keys, but there are {count}")
    _check_manifest(folder, count, dimension)
    return ArrayFile(folder / KEYS, "<i8"), ArrayFile(folder / ROWS, "<f4", (dimension,))


def read_table(path: str | os.PathLike[str], dimension: int) -> Iterator[tuple[Array, Array]]:
    """The keys [n] and rows [n, D] of a folder, one part after the other.

    Raises:
      FileNotFoundError, ValueError: as `open_table`.
    """
    keys, rows = open_table(path, dimension)
    yield from zip(keys.blocks(), rows.blocks(), strict=True)


def dimension_of(path: str | os.PathLike[str]) -> int:
    """The dimension of a folder's rows, by its manifest, or by the sizes of its files.

    Raises:
      FileNotFoundError: there are no such files.
      ValueError: files that do not belong together, or neither rows nor a manifest.
    """
    folder = Path(path)
    manifest = _manifest(folder)
    if manifest is not None:
        dimension = int(manifest.get("dimension", 0))
    else:
        key_bytes, size = os.path.getsize(folder / KEYS), os.path.getsize(folder / ROWS)
        dimension = 2 * size // key_bytes if key_bytes else 0
    if dimension < 1:
        raise ValueError(
            f"{path}: has no rows, and no manifest that says which dimension they have"
        )
    open_table(folder, dimension)
    return dimension


def _manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / _MANIFEST
    if not path.exists():
        return None
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def _check_manifest(folder: Path, count: int, dimension: int) -> None:
    path, manifest = folder / _MANIFEST, _manifest(folder)
    if manifest is None:
        return
    if (manifest.get("rows"), manifest.get("dimension")) != (count, dimension):
        raise ValueError(
            f"{path}: is of {manifest.get('rows')} rows of dimension {manifest.get('dimension')}, "
            f"but there are {count} of {dimension}"
        )
