"""Bags of gathered rows for the kernels, and what NumPy makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion.cpu_ops import combine
from fusion.runtime.native.jit import callable_from_python

Array = Any

group_by_row = callable_from_python(combine.group_by_row)

COMBINERS = {"sum": combine.SUM, "mean": combine.MEAN, "sqrtn": combine.SQRTN}


@dataclass
class Bags:
    """`table` [u, D], `places` int32 [m] into it, `rows` int64 [m, 2] and `weights` [m]."""

    table: Array
    places: Array
    rows: Array
    weights: Array
    n_rows: int

    @classmethod
    def random(cls, rng, lengths, dim, dtype=np.float32, unique=20, shuffled=False) -> Bags:
        rows = np.repeat(np.arange(len(lengths)), lengths)
        if shuffled:
            rng.shuffle(rows)
        total = len(rows)
        return cls(
            table=rng.standard_normal((unique, dim)).astype(dtype),
            places=rng.integers(0, unique, total).astype(np.int32),
            rows=np.stack([rows, rng.integers(0, 9, total)], 1).astype(np.int64).reshape(-1, 2),
            weights=rng.uniform(0.1, 3, total).astype(dtype),
            n_rows=len(lengths),
        )

    @property
    def addresses(self) -> Array:
        """The address of each row of the table, scattered over memory as shards are."""
        return row_addresses(self.table)

    def grouped(self) -> tuple[Array, Array]:
        """(starts, order) as the kernel finds them."""
        starts, order = np.empty(self.n_rows + 1, np.int64), np.empty(len(self.rows), np.int32)
        assert group_by_row(self.rows, self.n_rows, starts, order) == -1
        return starts, order

    def entries(self, row: int) -> Array:
        """The places of the entries of a row, in order."""
        return np.flatnonzero(self.rows[:, 0] == row)


def row_addresses(matrix: Array) -> Array:
    """The address of each row of a C-contiguous matrix."""
    return matrix.ctypes.data + np.arange(len(matrix), dtype=np.int64) * matrix.strides[0]


def clipped(table: Array, limit: float) -> Array:
    """The rows with their norms limited, in float64; `limit` < 0 is none."""
    wide = table.astype(np.float64)
    if limit < 0:
        return wide
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide * limit / np.maximum(norms, limit)
