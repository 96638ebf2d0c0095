"""Ids by a distribution, in bags, and tables; all a function of a seed."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ALPHA = 1.05
"""The exponent of the power law."""

MISSING = -1
"""A negative id: stock lookups drop it, and it stands for no id in dense inputs."""

Distribution = Literal["power law", "uniform"]


@dataclasses.dataclass(frozen=True)
class Draw:
    """How the ids of a batch are drawn.

    Attributes:
        distribution: of the ids of a table.
        empty: share of the rows that have no id at all.
        negative: share of the ids that are negative.
        seed: of everything drawn.
    """

    distribution: Distribution = "power law"
    empty: float = 0.0
    negative: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        parts = [f"{self.distribution} ids"]
        parts += [f"{self.empty:.0%} empty rows"] if self.empty else []
        parts += [f"{self.negative:.0%} negative ids"] if self.negative else []
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Bags:
    """The ids of one column, row by row.

    Attributes:
        ids: int64 [n], some perhaps `MISSING`.
        lengths: int64 [batch], ids per row; they add up to n.
        weights: float32 [n], or None.
    """

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None = None

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 [batch + 1]: where each row begins in `ids`, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """int64 [n, 2]: the row and the place in it of each id, as a SparseTensor has them."""
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        places = np.arange(len(self.ids)) - self.offsets[rows]
        return np.stack([rows, places], axis=1).astype(np.int64)

    @property
    def dense_shape(self) -> npt.NDArray[np.int64]:
        """int64 [2], as a SparseTensor has it."""
        return np.array([len(self.lengths), max(1, self.lengths.max(initial=0))], np.int64)

    @property
    def dense(self) -> npt.NDArray[np.int64]:
        """int64 [batch, 1]: the first id of each row, `MISSING` where there is none."""
        found = np.full(len(self.lengths), MISSING, np.int64)
        some = self.lengths > 0
        found[some] = self.ids[self.offsets[:-1][some]]
        return found[:, None]

    def pruned(self) -> Bags:
        """The same without negative ids, for libraries that cannot have them."""
        keep = self.ids >= 0
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)[keep]
        lengths = np.bincount(rows, minlength=len(self.lengths)).astype(np.int64)
        return Bags(self.ids[keep], lengths, None if self.weights is None else self.weights[keep])


def draw_bags(
    rng: np.random.Generator,
    draw: Draw,
    batch: int,
    rows: int,
    least: int,
    most: int,
    coverage: float = 1.0,
    weighted: bool = False,
) -> Bags:
    """Draws bags of `least` to `most` ids below `rows`; a share of 1 - coverage has none.

    Args:
        rng: what the numbers come from.
        draw: how the ids are distributed, and how many are missing.
        batch: number of bags.
        rows: rows of the table.
        least: ids of the shortest bag that is not left empty.
        most: ids of the longest bag.
        coverage: share of the bags that have ids at all, before `draw.empty`.
        weighted: whether ids have weights, uniform in [0.5, 1.5).

    Raises:
        ValueError: `least` and `most` are no range of lengths, or `rows` is not positive.
    """
    if not 0 <= least <= most:
        raise ValueError(f"lengths must have 0 <= least <= most, got {least} and {most}")
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    lengths = rng.integers(least, most + 1, batch)
    lengths[rng.random(batch) >= coverage * (1.0 - draw.empty)] = 0
    uniform = rng.random(int(lengths.sum()))
    if draw.distribution == "uniform":
        ids = np.floor(uniform * rows).astype(np.int64)
    else:
        ids = power_law(uniform, rows, ALPHA)
    ids[rng.random(len(ids)) < draw.negative] = MISSING
    weights = rng.uniform(0.5, 1.5, len(ids)).astype(np.float32) if weighted else None
    return Bags(ids, lengths.astype(np.int64), weights)


def power_law(uniform: npt.NDArray[np.float64], rows: int, alpha: float) -> npt.NDArray[np.int64]:
    """Ids in [0, rows) with P(id) ~ (id + 1)^-alpha, for uniform numbers in [0, 1); alpha is not 1.

    This inverts the distribution function of the continuous power law on [1, rows + 1).
    """
    exponent = 1.0 - alpha
    top = (rows + 1.0) ** exponent
    ids = np.floor((uniform * (top - 1.0) + 1.0) ** (1.0 / exponent)).astype(np.int64) - 1
    # Rounding may carry the largest uniform numbers past the end.
    return np.clip(ids, 0, rows - 1)


def draw_table(rng: np.random.Generator, rows: int, dim: int) -> npt.NDArray[np.float32]:
    """float32 [rows, dim], uniform in [-1, 1)."""
    table: npt.NDArray[Any] = rng.random((rows, dim), np.float32)
    table *= 2.0
    table -= 1.0
    return table
