"""Keys and rows as the strings of bytes that databases have.

A key is 8 bytes, big endian: a database that sorts keys has those that are close together side by
side. A row is its elements, float32, little endian.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusion.stores.tier import HitMask, Keys, Rows, check_keys

KEY_BYTES = 8


def bytes_of_keys(keys: Keys) -> list[bytes]:
    """Each of some keys as bytes.

    Raises:
      ValueError: as `check_keys`.
    """
    check_keys(keys)
    content = keys.astype(">i8").tobytes()
    return [content[k : k + KEY_BYTES] for k in range(0, len(content), KEY_BYTES)]


def keys_of_bytes(keys: Sequence[bytes]) -> Keys:
    """Keys [n].

    Raises:
      ValueError: not all of them have 8 bytes.
    """
    content = b"".join(keys)
    if len(content) != KEY_BYTES * len(keys):
        raise ValueError(f"has keys that are not of {KEY_BYTES} bytes")
    return np.frombuffer(content, ">i8").astype(np.int64)


def bytes_of_rows(rows: Rows) -> list[bytes]:
    """Each of some rows as bytes."""
    content, size = rows.astype("<f4", copy=False).tobytes(), 4 * rows.shape[1]
    return [content[k : k + size] for k in range(0, len(content), size)]


def rows_of_bytes(rows: Sequence[bytes], dimension: int) -> Rows:
    """Rows [n, dimension].

    Raises:
      ValueError: rows of another dimension.
    """
    size = 4 * dimension
    if wrong := {len(row) for row in rows} - {size}:
        raise ValueError(f"has a row of {wrong.pop()} bytes, but dimension {dimension} has {size}")
    return np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), dimension)


def write_values(values: Sequence[bytes | None], rows: Rows, where: NDArray[np.intp]) -> HitMask:
    """Writes the values of a database to rows; returns which have one.

    Args:
      values: of each of n keys, None where it has none.
      rows: out: [n, dimension]; those without a value stay as they are.
      where: [n], in which of the rows each value belongs.

    Returns:
      bool [n]: which of the rows have a value.

    Raises:
      ValueError: rows of another dimension.
    """
    has_value = np.fromiter((value is not None for value in values), np.bool_, len(values))
    into = where[has_value]
    rows[into] = rows_of_bytes([value for value in values if value is not None], rows.shape[1])
    has_row = np.zeros(len(values), np.bool_)
    has_row[into] = True
    return has_row
