"""Tables as files of SparseOperationKit, which its `sok.dump` writes and `sok.load` reads.

A folder has several tables. Of n keys of table NAME there are these files, whose entries are in the
same order; the last one for each optimizer variable that has rows:

    NAME-key              int64 [n]; uint64 for variables of mode "localized"
    NAME-weight           [n, D]
    NAME-OPTIMIZER-STATE  [n, D], as Adagrad-accumulator, Adam-m or Adam-v

NAME is `variable.name` with "_" for punctuation: `users_0` of "users:0". Arrays are little-endian,
each after a header of 296 bytes, whose integers are big-endian:

    256 bytes  name of the table, UTF-8, padded with spaces on the left; SOK leaves it blank
    uint32     what the file has: 0 keys, 1 rows, 2 an optimizer variable
    32 bytes   STATE, padded in the same way; blank in files of keys and rows
    uint32     dtype: 0 int32, 1 int64, 2 uint32, 3 uint64, 4 float16, 5 float32, 6 float64

To variables with numbered rows `sok.load` gives the rows with key % N = g on GPU g of N, in the
order of the file, and does not look at keys otherwise. So keys that are written here ascend, and
there may be any number of GPUs. Dynamic variables take rows by keys.

The source is NVIDIA-Merlin/HugeCTR, sparse_operation_kit/sparse_operation_kit/dump_load.py.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fusion.tables.files import Array, ArrayFile, new_file

_HEADER = struct.Struct(">256sI32sI")

_KEYS, _ROWS, _STATE = range(3)

_DTYPES = ("<i4", "<i8", "<u4", "<u8", "<f2", "<f4", "<f8")


def is_table(folder: Path, name: str) -> bool:
    """Whether a folder has keys of a table."""
    return (folder / f"{name}-key").exists()


def write_files(
    folder: Path,
    name: str,
    dtypes: Sequence[str],
    states: Sequence[str],
    blocks: Iterator[tuple[Array, list[Array]]],
) -> int:
    """Writes the files of a table; returns how many rows they have.

    Args:
      folder: where to.
      name: of the table.
      dtypes: of the rows, and of each optimizer variable.
      states: of each optimizer variable, OPTIMIZER-STATE.
      blocks: keys int64 [n], and the rows [n, D] of the table and of each optimizer variable.

    Raises:
      TypeError: a dtype that these files do not have.
    """
    codes = [_code(dtype, name) for dtype in dtypes]
    count = 0
    with contextlib.ExitStack() as stack:
        keys, *arrays = (
            stack.enter_context(new_file(folder / f"{name}-{kind}"))
            for kind in ("key", "weight", *states)
        )
        keys.write(_header(_KEYS, "", _DTYPES.index("<i8")))
        for file, code, (kind, state) in zip(arrays, codes, _kinds(states), strict=True):
            file.write(_header(kind, state, code))
        for some_keys, some_rows in blocks:
            some_keys.astype("<i8", copy=False).tofile(keys)
            for file, code, rows in zip(arrays, codes, some_rows, strict=True):
                rows.astype(_DTYPES[code], copy=False).tofile(file)
            count += len(some_keys)
    return count


def open_table(
    folder: Path, name: str, dimension: int, states: Sequence[str]
) -> tuple[ArrayFile, list[ArrayFile]]:
    """The keys [n], and the rows [n, D] of a table and of its optimizer variables.

    Raises:
      FileNotFoundError: there are no such files.
      ValueError: they have another header, rows of another dimension, or not as many as keys.
    """
    keys = _open(folder / f"{name}-key", _KEYS, "", ())
    arrays = [
        _open(folder / f"{name}-{file}", kind, state, (dimension,))
        for file, (kind, state) in zip(("weight", *states), _kinds(states), strict=True)
    ]
    for array in arrays:
        if len(array) != len(keys):
            raise ValueError(
                f"{array.path}: has {len(array)} rows of dimension {dimension}, but there are "
                f"{len(keys)} keys"
            )
    return keys, arrays


def _kinds(states: Sequence[str]) -> list[tuple[int, str]]:
    """What the headers of rows and optimizer variables say that the files have."""
    return [(_ROWS, ""), *((_STATE, state.partition("-")[2]) for state in states)]


def _code(dtype: str, name: str) -> int:
    if dtype not in ("float16", "float32", "float64"):
        raise TypeError(
            f"files of SparseOperationKit have float16, float32 or float64, and {name!r} is {dtype}"
        )
    return _DTYPES.index(np.dtype(dtype).newbyteorder("<").str)


def _header(kind: int, state: str, code: int) -> bytes:
    return _HEADER.pack(b" " * 256, kind, state.rjust(32).encode(), code)


def _open(path: Path, kind: int, state: str, shape: tuple[int, ...]) -> ArrayFile:
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError(
            f"{path}: has {len(header)} bytes, fewer than the {_HEADER.size} of a header"
        )
    _, file_kind, padded, code = _HEADER.unpack(header)
    if (file_kind, padded.strip()) != (kind, state.encode()):
        raise ValueError(
            f"{path}: is no such file of SparseOperationKit: its header says kind {file_kind} and "
            f"{padded.strip()!r}, and should say {kind} and {state.encode()!r}"
        )
    allowed = _DTYPES[:4] if kind == _KEYS else _DTYPES[4:]
    if code >= len(_DTYPES) or _DTYPES[code] not in allowed:
        names = ", ".join(np.dtype(dtype).name for dtype in allowed)
        raise ValueError(f"{path}: its header says dtype {code}, which is none of {names}")
    return ArrayFile(path, _DTYPES[code], shape, _HEADER.size)
