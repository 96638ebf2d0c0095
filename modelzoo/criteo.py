"""Click logs in the shape of Criteo's: 13 counts, 26 categorical ids, a click or none.

`CriteoData` makes synthetic samples. Ids follow a power law or are uniform. Labels come from a
planted model of all 39 features: what each says alone gives a logistic model an AUC above 0.70;
products of planted vectors of two features, as factorization machines have them, say more. Rare ids
say less than frequent ones, so that what there is to learn is seen often enough. Each batch is a
function of the seed and its index alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LABEL = "label"
"""Name of the label: 1 for a click, 0 for none."""

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
"""Names of the 13 numeric features."""

_SIZES = (
    *(10_000_000, 29_612, 15_050, 7_190, 19_547, 4, 6_492, 1_317, 63, 10_000_000, 707_291, 218_510),
    *(11, 2_209, 9_798, 72, 4, 954, 15, 10_000_000, 4_553_157, 10_000_000, 291_641, 10_904, 91, 35),
)

CARDINALITIES: Mapping[str, int] = {f"C{i}": rows for i, rows in enumerate(_SIZES, 1)}
"""Number of ids of each of the 26 categorical features of the 1TB logs after frequency limiting."""

CATEGORICAL = tuple(CARDINALITIES)
"""Names of the 26 categorical features."""

MISSING_ID = -1
"""The id of a missing category; feature columns drop it."""

MISSING_COUNT = -1.0
"""A missing count."""


def cardinalities(cap: int | None = None) -> dict[str, int]:
    """Returns the ids per categorical feature, none above `cap`.

    Raises:
        ValueError: `cap` is not positive.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}")
    return {name: rows if cap is None else min(rows, cap) for name, rows in CARDINALITIES.items()}


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


_RANK = 4  # elements of the planted vectors whose products are the interactions of two features
_BIAS = -1.0
_COUNT_SCALE = 0.25
_ID_SCALE = 0.33
_PAIR_SCALE = 0.38
_FREQUENT = 50.0


@dataclass(frozen=True)
class Batch:
    """Samples.

    Attributes:
        features: float32 [n, 1] for each name in `NUMERIC` (counts, at least 0), int64 [n, 1] for
            each name in `CATEGORICAL` (ids, or `MISSING_ID`).
        labels: float32 [n, 1], 1 for a click and 0 for none.
    """

    features: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[np.float32]


@dataclass(frozen=True)
class CriteoData:
    """A source of synthetic batches; equal sources give equal batches.

    Attributes:
        cap: largest number of ids of a feature, None for the full cardinalities.
        alpha: exponent of the power law of the ids, None for uniform ids.
        missing: share of categorical entries that are `MISSING_ID`, in [0, 1].
        seed: selects the planted model and the samples.
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
        """Returns batch number `index` of `size` samples."""
        rng = np.random.default_rng([self.seed, index])
        features: dict[str, npt.NDArray[Any]] = {}
        logits = np.full((size, 1), _BIAS)
        vectors = np.zeros((size, _RANK))
        squares = np.zeros((size, _RANK))
        for position, name in enumerate(NUMERIC):
            counts = np.floor(rng.lognormal(mean=1.0, sigma=1.5, size=(size, 1)))
            features[name] = counts.astype(np.float32)
            logits += _COUNT_SCALE * _effect(np.array([position]), self.seed) * np.log1p(counts)
        for position, (name, rows) in enumerate(cardinalities(self.cap).items()):
            ids = self._ids(rng, rows, size)
            features[name] = ids
            known = np.where(ids == MISSING_ID, 0.0, 1.0 / np.sqrt(1.0 + ids / _FREQUENT))
            keys = ids + (position + 1) * 2**40
            logits += _ID_SCALE * known * _effect(keys, self.seed)
            for element in range(_RANK):
                own = _PAIR_SCALE * known * _effect(keys + (element + 1) * 2**50, self.seed)
                vectors[:, element : element + 1] += own
                squares[:, element : element + 1] += own**2
        logits += 0.5 * np.sum(vectors**2 - squares, axis=1, keepdims=True)
        clicked = rng.random((size, 1)) < 1.0 / (1.0 + np.exp(-logits))
        return Batch(features, clicked.astype(np.float32))

    def _ids(self, rng: np.random.Generator, rows: int, size: int) -> npt.NDArray[np.int64]:
        uniform = rng.random((size, 1))
        if self.alpha is None:
            ids = np.floor(uniform * rows).astype(np.int64)
        else:
            ids = power_law_ids(uniform, rows, self.alpha)
        return np.where(rng.random((size, 1)) < self.missing, MISSING_ID, ids)


def _effect(keys: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float64]:
    """Returns one planted weight per key, uniform with mean 0 and variance 1.

    A hash (the finalizer of MurmurHash3) replaces a table of weights, which would be large for the
    uncapped cardinalities.
    """
    bits = keys.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(multiplier)
    bits ^= bits >> np.uint64(33)
    return (bits.astype(np.float64) / 2.0**64 - 0.5) * np.sqrt(12.0)
