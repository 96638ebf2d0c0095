"""How far rounding may take a lookup from stock TensorFlow's: 4 eps n sum |terms| per element.

n is the number of terms that are added up one after another, |terms| what is added. Where a term
is itself made of sums (a norm, a divisor), their lengths count too. Below the smallest normal
number, which only half types come near to, rounding is absolute: n of those steps on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = Any


@dataclass
class Bounds:
    """Of a lookup of ids `values` [nnz] in `table` [rows, D], which must all be in it.

    `rows` [nnz] are rows of the result, `weights` [nnz] or None; `max_norm` may be None.
    """

    table: Array
    values: Array
    rows: Array
    weights: Array
    combiner: str
    max_norm: float | None
    batch: int

    def __post_init__(self) -> None:
        wide = self.table.astype(np.float64)
        self.norms = np.linalg.norm(wide, axis=1, keepdims=True)
        scale = np.ones_like(self.norms)
        if self.max_norm is not None:
            limit = max(self.max_norm, 0.0)
            scale = limit / np.maximum(np.maximum(self.norms, limit), 1e-300)
        self.clipped = np.abs(wide) * scale
        self.scale = scale
        used = np.ones(len(self.rows)) if self.weights is None else self.weights
        self.used = np.abs(used.astype(np.float64))
        total = np.bincount(self.rows, self.used, minlength=self.batch)
        squares = np.bincount(self.rows, self.used**2, minlength=self.batch)
        divisor = {"sum": np.ones(self.batch), "mean": total, "sqrtn": np.sqrt(squares)}
        self.divisor = np.where(divisor[self.combiner] == 0, 1, divisor[self.combiner])
        self.counts = np.maximum(np.bincount(self.rows, minlength=self.batch), 1)

    def output(self) -> Array:
        """[batch, D]."""
        terms = self.clipped[self.values] * (self.used / self.divisor[self.rows])[:, None]
        total = np.zeros((self.batch, self.table.shape[1]))
        np.add.at(total, self.rows, terms)
        return self._bound(self.counts[:, None], total)

    def table_gradient(self, top_grad: Array) -> Array:
        """[rows, D], from the gradient [batch, D] of the result."""
        terms = np.abs(top_grad)[self.rows] * (self.used / self.divisor[self.rows])[:, None]
        total: Array = np.zeros(self.table.shape)
        np.add.at(total, self.values, terms)
        added = np.bincount(self.values, minlength=len(self.table))[:, None]
        lengths: Array = added + (self.counts.max() if self.weights is not None else 0)
        if self.max_norm is not None:
            norms = np.maximum(self.norms, 1e-300)
            along = (np.abs(self.table) * total).sum(1, keepdims=True)
            clips = self.scale < 1
            total = self.scale * (total + clips * np.abs(self.table) * along / norms**2)
            lengths += self.table.shape[1]
        return self._bound(lengths, total)

    def weights_gradient(self, top_grad: Array) -> Array:
        """[nnz], likewise."""
        scaled = np.abs(top_grad) / self.divisor[:, None]
        terms = (scaled[self.rows] * self.clipped[self.values]).sum(1)
        through: Array = np.bincount(self.rows, terms * self.used, minlength=self.batch)
        if self.combiner == "sum":
            through = np.zeros(self.batch)
        if self.combiner == "mean":
            terms = terms + (through / self.divisor)[self.rows]
        if self.combiner == "sqrtn":
            terms = terms + (through / self.divisor**2)[self.rows] * self.used
        lengths = self.table.shape[1] + self.counts[self.rows]
        return self._bound(lengths, terms, self.weights.dtype)

    def _bound(self, lengths: Array, total: Array, *others: Any) -> Array:
        """The bound of what passes through the table's dtype and perhaps `others`."""
        finfos = [ml_dtypes.finfo(dtype) for dtype in (self.table.dtype, *others)]
        eps = max(float(finfo.eps) for finfo in finfos)
        tiny = max(float(finfo.smallest_subnormal) for finfo in finfos)
        bound: Array = lengths * (4 * eps * total + tiny)
        return bound


def loss_factors(shape: tuple[int, ...]) -> Array:
    """The gradient of the result in `tests.reference.outcome`."""
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
