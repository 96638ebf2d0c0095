"""The interface of a tier of a table store: rows of tables by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Rows = NDArray[np.float32]
HitMask = NDArray[np.bool_]
Block = tuple[Keys, Rows]
Blocks = Iterable[Block]


@dataclass(frozen=True)
class TableDescription:
    """A table: its rows are vectors of float32, which belong to keys of int64.

    Attributes:
      name: by which tiers know it.
      dimension: elements of a row.
      default: each element of the row of a key that no tier has.
    """

    name: str
    dimension: int
    default: float = 0.0

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or "\0" in self.name:
            raise ValueError(f"name of a table must be a file name, got {self.name!r}")
        if self.dimension < 1:
            raise ValueError(f"dimension of {self.name} must be positive, got {self.dimension}")


class TierError(Exception):
    """A tier that does not answer, or whose data cannot be right.

    Attributes:
      tier: its name, with its address: "redis at 127.0.0.1:6379".
      table: the requested table, "" if none.
      cause: what went wrong.
    """

    def __init__(self, tier: str, table: str, cause: str | BaseException) -> None:
        super().__init__(tier, table, cause)
        self.tier, self.table, self.cause = tier, table, cause

    def __str__(self) -> str:
        of_table = f", table {self.table}" if self.table else ""
        return f"{self.tier}{of_table}: {str(self.cause) or type(self.cause).__name__}"


class Tier(Protocol):
    """Rows of tables by their keys.

    All methods may be called by several threads at once, except that a table is opened before it is
    used and `close` comes last. Keys of a call are distinct. A row that is read while it is put is
    the old or the new one, never a mixture. Any method raises `TierError` if the tier
    cannot do what it should, and `KeyError` for a table that is not open.

    Attributes:
      name: the kind of tier, as counters show it: "memory", "mapped", "rocksdb", "redis".
      address: a folder, or hosts and ports.
      is_writable: whether `put` and `remove` are supported; `io.UnsupportedOperation` if not.
    """

    name: str
    address: str
    is_writable: bool

    def open_table(self, table: TableDescription) -> None:
        """Opens a table, which has no rows if the tier does not know it and is writable."""

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """Writes the rows of those keys that the tier has, in one request.

        Args:
          table: its name.
          keys: [n], distinct.
          rows: out: [n, dimension], C order; rows of other keys stay as they are.

        Returns:
          [n]: which of the keys have a row.
        """

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        """Adds rows [n, dimension], or replaces those of keys [n] that have one."""

    def remove(self, table: str, keys: Keys) -> None:
        """Removes the rows of keys [n]; those that have none stay so."""

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        """All rows of a table, about `size` at a time, in the tier's own order.

        Of rows that are put or removed in the meantime some may come and others not.
        """

    def count(self, table: str) -> int:
        """The number of rows of a table."""

    def close(self) -> None:
        """Ends connections and lets go of files."""


def check_fetch(dimension: int, keys: Keys, rows: Rows) -> None:
    """Checks the arguments of `Tier.fetch`.

    Raises:
      ValueError: other dtypes or shapes, or rows that are not in C order or not writable.
    """
    check_rows(dimension, keys, rows)
    if not rows.flags.carray:
        raise ValueError("rows must be in C order and writable")


def dimension_of(keys: Keys, rows: Rows) -> int:
    """The dimension of the rows of a block.

    Raises:
      TypeError: it is not of arrays.
      ValueError: other dtypes or shapes.
    """
    for name, array in (("keys", keys), ("rows", rows)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, got {type(array).__name__}")
    dimension = rows.shape[-1] if rows.ndim else 0
    check_rows(dimension, keys, rows)
    return dimension


def check_keys(keys: Keys) -> None:
    """Checks keys.

    Raises:
      ValueError: another dtype or shape.
    """
    if keys.dtype != np.int64 or keys.ndim != 1:
        raise ValueError(f"keys must be int64 of one axis, got {keys.dtype} of shape {keys.shape}")


def check_rows(dimension: int, keys: Keys, rows: Rows) -> None:
    """Checks keys and their rows.

    Raises:
      ValueError: other dtypes or shapes.
    """
    check_keys(keys)
    if rows.dtype != np.float32 or rows.shape != (len(keys), dimension):
        raise ValueError(
            f"rows must be float32 of shape {(len(keys), dimension)}, got {rows.dtype} of shape "
            f"{rows.shape}"
        )
