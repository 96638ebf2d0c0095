"""Models of few features: to trace one takes as long as it has features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from modelzoo import criteo
from modelzoo.layers import Embeddings

#: The categorical features of small models.
FEW = ("C1", "C2", "C3", "C4")
CAP = 50
SIZES = {"dim": 4, "hidden": [16, 8]}

_ALL = criteo.cardinalities


@contextmanager
def few_features() -> Iterator[None]:
    """Has samples, and the commands, only few of the categorical features."""

    def cardinalities(cap: int | None = None) -> dict[str, int]:
        return {name: _ALL(cap)[name] for name in FEW}

    with (
        mock.patch.object(criteo, "cardinalities", cardinalities),
        mock.patch.object(criteo, "CATEGORICAL", FEW),
    ):
        yield


def small(kind: str = "columns", do_fusion: str | None = None) -> Embeddings:
    """The embeddings of a small model."""
    return Embeddings({name: _ALL(CAP)[name] for name in FEW}, kind, do_fusion)


def batches(count: int, size: int = 32, missing: float = 0.1) -> list[criteo.Batch]:
    """Batches of samples of few features."""
    data = criteo.CriteoData(CAP, missing=missing)
    with few_features():
        return [data.batch(size, index) for index in range(count)]
