"""How full embedding variables are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.ops.tables.cpu_kernels.layout import KeyIndex

#: Of a key in a checkpoint: itself, int64, how often it was seen, int32, and when, int64.
_KEY_BYTES = 20


@dataclass(frozen=True)
class TableStatistics:
    """How full an embedding variable is.

    Attributes:
      name: of the table.
      dimension: D of a row.
      dtype: the name of the table's dtype.
      keys: how many there are, with those that wait for admission.
      rows: how many keys have a row.
      capacity: how many can have one; None if that is not known.
    """

    name: str
    dimension: int
    dtype: str
    keys: int
    rows: int
    capacity: int | None

    @property
    def load(self) -> float | None:
        """The share of the capacity that has a key."""
        return None if self.capacity is None else self.rows / self.capacity

    @property
    def bytes(self) -> int:
        """What keys and rows take in a checkpoint."""
        row_bytes: int = self.dimension * tf.as_dtype(self.dtype).size
        return _KEY_BYTES * self.keys + row_bytes * self.rows

    def to_dict(self) -> dict[str, Any]:
        """Attributes and properties, ready for JSON."""
        return {**self.__dict__, "load": self.load, "bytes": self.bytes}


def statistics(table: Any, index: Any) -> TableStatistics:
    """Those of an embedding variable at this moment.

    Args:
      table, index: its variables.
    """
    head = tf.gather(index, tf.range(KeyIndex.SIZE, dtype=tf.int64)).numpy().view(np.int64)
    gone = head[KeyIndex.free_rows] + head[KeyIndex.pending_rows]
    return TableStatistics(
        name=table.name.partition(":")[0],
        dimension=int(table.shape[1]),
        dtype=table.dtype.name,
        keys=int(head[KeyIndex.key_count]),
        rows=int(head[KeyIndex.row_count] - gone),
        capacity=int(head[KeyIndex.capacity]),
    )
