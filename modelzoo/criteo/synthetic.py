"""Synthetic click logs in the shape of Criteo's: 13 counts, 26 categorical ids, a click or none.

Ids follow a power law or are uniform. Labels come from a planted model over all 39 features: what
each says alone gives a logistic model an AUC above 0.70; products of planted vectors of two
features, as factorization machines have them, say more. Rare ids say less than frequent ones, so
that what there is to learn is seen often enough. Everything is a function of the seed and the
batch's index: no file is read or written, and any batch can be made alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from modelzoo.criteo.schema import MISSING_ID, NUMERIC, Features, cardinalities

TRUE_RANK = 4
"""Elements of the planted vectors whose products are the interactions of two features."""


def power_law_ids(
    uniform: npt.NDArray[np.float64], rows: int, alpha: float
) -> npt.NDArray[np.int64]:
    """Maps uniform numbers in [0, 1) to ids in [0, rows) with P(id) ~ (id + 1)^-alpha.

    This inverts the distribution function of the continuous power law on [1, rows + 1).

    Raises:
        ValueError: `alpha` is 1, where that function has another form, or `rows` is not positive.
    """
    if alpha == 1.0:
        raise ValueError("alpha must differ from 1")
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    exponent = 1.0 - alpha
    top = (rows + 1.0) ** exponent
    ids = np.floor((uniform * (top - 1.0) + 1.0) ** (1.0 / exponent)).astype(np.int64) - 1
    # Rounding may carry the largest uniform numbers past the end.
    return np.clip(ids, 0, rows - 1)


_BIAS = -1.0
_COUNT_SCALE = 0.25
_ID_SCALE = 0.33
_PAIR_SCALE = 0.38
_FREQUENT = 50.0


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch of examples.

    Attributes:
        features: float32 [n, 1] for each name in `NUMERIC` (counts, at least 0), int64 [n, 1] for
            each name in `CATEGORICAL` (ids, or `MISSING_ID`).
        labels: float32 [n, 1], 1 for a click and 0 for none.
    """

    features: Features
    labels: npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class CriteoData:
    """A source of batches; equal sources give equal batches.

    Attributes:
        cap: largest number of ids of a feature, None for the full cardinalities.
        alpha: exponent of the power law of the ids, None for uniform ids.
        missing: share of categorical entries that are `MISSING_ID`, in [0, 1].
        seed: selects the planted model and the examples.
    """

    cap: int | None = None
    alpha: float | None = 1.05
    missing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.missing <= 1.0:
            raise ValueError(f"missing must lie in [0, 1], got {self.missing}")
        if self.alpha == 1.0:
            raise ValueError("alpha must differ from 1")
        cardinalities(self.cap)

    def batch(self, size: int, index: int = 0) -> Batch:
        """Returns batch number `index` of `size` examples."""
        rng = np.random.default_rng([self.seed, index])
        features: Features = {}
        logits = np.full((size, 1), _BIAS)
        vectors = np.zeros((size, TRUE_RANK))
        squares = np.zeros((size, TRUE_RANK))
        for position, name in enumerate(NUMERIC):
            counts = np.floor(rng.lognormal(mean=1.0, sigma=1.5, size=(size, 1)))
            features[name] = counts.astype(np.float32)
            logits += _COUNT_SCALE * _effect(np.array([position]), self.seed) * np.log1p(counts)
        for position, (name, rows) in enumerate(cardinalities(self.cap).items()):
            ids = self._ids(rng, rows, size)
            features[name] = ids
            # A rare id says little.
            known = np.where(ids == MISSING_ID, 0.0, 1.0 / np.sqrt(1.0 + ids / _FREQUENT))
            keys = ids + (position + 1) * 2**40
            logits += _ID_SCALE * known * _effect(keys, self.seed)
            for element in range(TRUE_RANK):
                own = _PAIR_SCALE * known * _effect(keys + (element + 1) * 2**50, self.seed)
                vectors[:, element : element + 1] += own
                squares[:, element : element + 1] += own**2
        logits += 0.5 * np.sum(vectors**2 - squares, axis=1, keepdims=True)
        clicked = rng.random((size, 1)) < 1.0 / (1.0 + np.exp(-logits))
        return Batch(features, clicked.astype(np.float32))

    def batches(self, size: int, count: int, start: int = 0) -> Iterator[Batch]:
        """Yields `count` batches of `size` examples, from number `start` on."""
        for index in range(start, start + count):
            yield self.batch(size, index)

    def _ids(self, rng: np.random.Generator, rows: int, size: int) -> npt.NDArray[np.int64]:
        uniform = rng.random((size, 1))
        if self.alpha is None:
            ids = np.floor(uniform * rows).astype(np.int64)
        else:
            ids = power_law_ids(uniform, rows, self.alpha)
        return np.where(rng.random((size, 1)) < self.missing, MISSING_ID, ids)


def _effect(keys: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float64]:
    """Returns one planted weight per key, uniform with mean 0 and variance 1.

    A hash (the finalizer of MurmurHash3) stands in for a table of weights, which the uncapped
    cardinalities would make large.
    """
    bits = keys.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(multiplier)
    bits ^= bits >> np.uint64(33)
    return (bits.astype(np.float64) / 2.0**64 - 0.5) * np.sqrt(12.0)
