"""How far rounding may take a lookup from stock TensorFlow's: 4 eps n sum |terms| per element.

n is the number of terms that are added up one after another, |terms| what is added. Where a term
is itself made of sums (a norm, a divisor), their lengths count too. Below the smallest normal
number rounding is absolute: n of those steps on top. float32 has none there, since TensorFlow's
threads take smaller numbers for 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = Any

#: What half types are summed in, too.
_SINGLE = np.finfo(np.float32)


@dataclass
class Bounds:
    """Of a lookup of ids `values` [nnz] in `table` [rows, D], which must all be in it.

    `rows` [nnz] are rows of the result, `weights` [nnz] or None; `max_norm` may be None.

    A bound is inf where rounding decides everything: numbers overflow on the way though the inputs
    are finite, or weights cancel out. It is NaN where inputs that are not finite come in.
    """

    table: Array
    values: Array
    rows: Array
    weights: Array
    combiner: str
    max_norm: float | None
    batch: int

    def __post_init__(self) -> None:
        # Wide enough for what overflows in float64.
        wide = self.table.astype(np.longdouble)
        self.magnitudes = np.abs(wide)
        finfos = [ml_dtypes.finfo(a.dtype) for a in (self.table, self.weights) if a is not None]
        self.eps = 4 * max(float(finfo.eps) for finfo in finfos)
        self.step = max(float(finfo.smallest_subnormal) for finfo in finfos)
        if self.table.dtype != np.float64:
            self.step = max(self.step, float(_SINGLE.tiny))
        self.most = min(float(finfo.max) for finfo in finfos) / 2
        self.norms = np.sqrt((wide**2).sum(1, keepdims=True))
        scale = np.ones_like(self.norms)
        overflowing = np.zeros(len(self.table), bool)
        self.clip_divisor = np.ones_like(self.norms)
        if self.max_norm is not None:
            limit = max(self.max_norm, 0.0)
            divisor = np.maximum(self.norms, limit)
            self.clip_divisor = np.where(divisor == 0, 1, divisor)
            scale = limit / np.maximum(divisor, 1e-300)
            largest = self.norms * np.maximum(self.norms, limit)
            overflowing = (np.isfinite(self.norms) & (largest > self.most))[:, 0]
        self.overflowing = overflowing
        self.clipped = self.magnitudes * scale
        self.scale = scale
        used = np.ones(len(self.rows)) if self.weights is None else self.weights
        used = used.astype(np.longdouble)
        self.used = np.abs(used)
        total, signed = self._per_bag(self.used), np.abs(self._per_bag(used))
        squares = self._per_bag(self.used**2)
        divisor = {"sum": np.ones(self.batch), "mean": signed, "sqrtn": np.sqrt(squares)}
        self.divisor = np.where(divisor[self.combiner] == 0, 1, divisor[self.combiner])
        self.counts = np.maximum(np.bincount(self.rows, minlength=self.batch), 1).astype(np.float64)
        self.lost = self._per_bag(overflowing[self.values]) > 0
        self.lost |= self._overflows(self.rows, self.used**2, self.batch)
        sums = self.clipped[self.values] * self.used[:, None]
        self.lost |= self._overflows(self.rows, sums, self.batch).any(axis=1)
        if self.combiner == "mean":
            # Weights that cancel out leave fewer digits of their sum, or none.
            self.counts *= np.where(total > signed, total / np.maximum(signed, 1e-300), 1)
            self.lost |= self.counts * self.eps > 1

    def output(self) -> Array:
        """[batch, D]."""
        total = self._per_bag(
            self.clipped[self.values] * (self.used / self.divisor[self.rows])[:, None]
        )
        lengths = self.counts[:, None]
        return self._bound(lengths, lengths * total, self.lost[:, None])

    def table_gradient(self, top_grad: Array) -> Array:
        """[rows, D], from the gradient [batch, D] of the result."""
        terms = np.abs(top_grad)[self.rows] * (self.used / self.divisor[self.rows])[:, None]
        lengths: Array = np.bincount(self.values, minlength=len(self.table))[self.values]
        if self.weights is not None:
            lengths = lengths + self.counts[self.rows]
        if self.max_norm is not None:
            lengths = lengths + self.table.shape[1]
        # Stock divides by the larger one of norm and limit before it multiplies by the limit.
        divided = np.abs(_sums(self.values, terms, len(self.table))) / self.clip_divisor
        terms = lengths[:, None] * terms
        total = _sums(self.values, terms, len(self.table))
        lost = self._overflow(divided) | self._overflows(self.values, terms, len(self.table))
        if self.max_norm is not None:
            unit = self.magnitudes / np.maximum(self.norms, 1e-300)
            along = (unit * total).sum(1, keepdims=True)
            total = self.scale * (total + (self.scale < 1) * unit * along)
        of_bags = _sums(self.values, self.lost[self.rows], len(self.table)) > 0
        lost |= (of_bags | self.overflowing)[:, None]
        return self._bound(lengths.sum(), total, lost)

    def weights_gradient(self, top_grad: Array) -> Array:
        """[nnz], likewise."""
        scaled = np.abs(top_grad) / self.divisor[:, None]
        terms = (scaled[self.rows] * self.clipped[self.values]).sum(1)
        lost = self.lost[self.rows] | self._overflow(terms)
        if self.combiner != "sum":
            # Of the divisor: the result over the divisor, then times top_grad and added up.
            sums = self._per_bag(self.clipped[self.values] * self.used[:, None])
            ratios = sums / self.divisor[:, None] ** 2
            through = (np.abs(top_grad) * ratios).sum(1)
            of_bags = self._overflow(ratios).any(axis=1) | self._overflow(through)
            if self.combiner == "sqrtn":
                through = through / self.divisor
                of_bags |= self._overflow(through)
            lost |= of_bags[self.rows]
            through = through[self.rows]
            terms = terms + (through * self.used if self.combiner == "sqrtn" else through)
        lengths = self.table.shape[1] + self.counts[self.rows]
        return self._bound(lengths, lengths * terms, lost)

    def _per_bag(self, terms: Array) -> Array:
        return _sums(self.rows, terms, self.batch)

    def _overflows(self, places: Array, terms: Array, count: int) -> Array:
        """Where the sum of the finite terms of each of `count` places may overflow."""
        return self._overflow(_sums(places, np.where(np.isfinite(terms), terms, 0), count))

    def _overflow(self, numbers: Array) -> Array:
        """Where finite numbers may overflow."""
        return np.isfinite(numbers) & (numbers > self.most)

    def _bound(self, lengths: Array, scaled: Array, lost: Array) -> Array:
        """From n, n sum |terms|, and where rounding decides everything."""
        bound = np.where(np.isfinite(scaled), self.eps * scaled + self.step * lengths, np.nan)
        return np.where(lost, np.inf, bound)


def _sums(places: Array, terms: Array, count: int) -> Array:
    """The sum of the terms of each of `count` places."""
    total: Array = np.zeros((count, *terms.shape[1:]), np.longdouble)
    np.add.at(total, places, terms)
    return total


def loss_factors(shape: tuple[int, ...]) -> Array:
    """The gradient of the result in `tests.reference.outcome`."""
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
