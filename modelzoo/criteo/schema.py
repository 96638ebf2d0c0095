"""What Criteo's click logs hold: a label, 13 counts and 26 categorical ids for each impression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

LABEL = "label"
"""Name of the label: 1 for a click, 0 for none."""

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
"""Names of the 13 numeric features."""

CARDINALITIES: Mapping[str, int] = {
    "C1": 10_000_000,
    "C2": 29_612,
    "C3": 15_050,
    "C4": 7_190,
    "C5": 19_547,
    "C6": 4,
    "C7": 6_492,
    "C8": 1_317,
    "C9": 63,
    "C10": 10_000_000,
    "C11": 707_291,
    "C12": 218_510,
    "C13": 11,
    "C14": 2_209,
    "C15": 9_798,
    "C16": 72,
    "C17": 4,
    "C18": 954,
    "C19": 15,
    "C20": 10_000_000,
    "C21": 4_553_157,
    "C22": 10_000_000,
    "C23": 291_641,
    "C24": 10_904,
    "C25": 91,
    "C26": 35,
}
"""Number of ids of each of the 26 categorical features of the 1TB logs after frequency limiting."""

CATEGORICAL = tuple(CARDINALITIES)
"""Names of the 26 categorical features."""

FIELDS = (LABEL, *NUMERIC, *CATEGORICAL)
"""What a line of the logs holds, in its order."""

MISSING_ID = -1
"""The id of a missing category; feature columns drop it."""

MISSING_COUNT = -1.0
"""A missing count."""

Features = dict[str, npt.NDArray[Any]]


class DataError(ValueError):
    """Data that is not there or cannot be read; the message names the file."""


def cardinalities(cap: int | None = None) -> dict[str, int]:
    """Returns the ids per categorical feature, none above `cap`.

    Raises:
        ValueError: `cap` is not positive.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}")
    return {name: rows if cap is None else min(rows, cap) for name, rows in CARDINALITIES.items()}


def log_counts(counts: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns log(1 + x), with negative and missing counts taken as 0."""
    return np.log1p(np.maximum(counts, np.float32(0)))
