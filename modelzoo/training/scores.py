"""How good predictions are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """The share of pairs of a click and none of which the click has the larger score.

    Equal scores count half. It is exact, by the sum of ranks (Mann and Whitney, 1947); NaN if there
    are no clicks or nothing else.

    Args:
        labels: [n], 1 for a click and 0 for none.
        scores: [n].
    """
    labels, scores = np.ravel(labels), np.ravel(scores)
    clicks = int(np.count_nonzero(labels))
    others = len(labels) - clicks
    if not clicks or not others or not np.isfinite(scores).all():
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks, which start at 1.
    ranks = np.cumsum(counts) - (counts - 1) / 2
    total = float(ranks[places][labels > 0].sum())
    return (total - clicks * (clicks + 1) / 2) / (clicks * others)
