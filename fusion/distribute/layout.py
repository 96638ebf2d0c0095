"""Which replica has which rows of a sharded table."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

import tensorflow as tf

#: Rows of a replica that are made or sent at once.
BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Layout:
    """Which replica has which rows.

    Attributes:
      rows: of the table.
      count: how many replicas there are, N.
      owner: the replica that has all rows; None if replica r has the rows r, r + N, ...
    """

    rows: int
    count: int
    owner: int | None

    @classmethod
    def of_mode(cls, mode: str, rows: int, count: int) -> Layout:
        """The layout of a mode as users give it.

        Raises:
          ValueError: there is no such mode, or no such replica.
        """
        if mode == "distributed":
            return cls(rows, count, None)
        localized = re.fullmatch(r"localized:(\d+)", mode) if isinstance(mode, str) else None
        if localized is None:
            raise ValueError(f'mode must be "distributed" or "localized:REPLICA", got {mode!r}')
        owner = int(localized[1])
        if owner >= count:
            raise ValueError(f"mode must name one of {count} replicas, got {mode!r}")
        return cls(rows, count, owner)

    def rows_of(self, replica: int) -> range:
        """The rows that a replica has."""
        if self.owner is None:
            return range(replica, self.rows, self.count)
        return range(self.rows if replica == self.owner else 0)

    def shard(self, table: tf.Tensor, replica: int) -> tf.Tensor:
        """The rows of a table that a replica has."""
        if self.owner is not None:
            return table if replica == self.owner else table[:0]
        return table[replica :: self.count]


def positions(rows: range, block: range) -> range:
    """Where in a replica's rows those of a block of consecutive ones are."""
    return range(bisect_left(rows, block.start), bisect_left(rows, block.stop))
