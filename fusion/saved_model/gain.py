"""What a rewrite is likely to bring, from what was measured of other models."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fusion.passes.report.columns import distinct_columns
from fusion.passes.report.report import FusionReport

SAVED_US: dict[int, tuple[float, float]] = {1: (15.0, 45.0), 256: (30.0, 85.0)}
"""Batch -> microseconds of a call that a fused column saved in the graph, the least and the most.

From `benchmarks/results/epyc` and `xeon`, two cores each, rounded outwards: the difference between
stock's and fusion's net time per column, at batch 1 of multihot26, shared, weighted, max_norm and
criteo26 (26 columns of 0 to 5 ids, dimensions 16 and 128), at batch 256 of wide1000 and recom-micro
(10 to 1000 columns of one id, dimension 8).
"""

FORM = "grouped"
"""What all of those columns became. An op of one column alone saves less at small batches."""


@dataclass(frozen=True)
class Saving:
    """What is saved of one call.

    Attributes:
        batch: examples per call.
        low_ms, high_ms: milliseconds, the least and the most that is likely.
    """

    batch: int
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Gain:
    """What fusing a model's columns is likely to save of a call that computes all of them.

    An estimate from measurements of other models on two cores. It says nothing about the rest of
    the model, which stays as it is.

    Attributes:
        columns: how many columns it is about: those that become one op with others.
        savings: one for each batch size that was measured.
    """

    columns: int
    savings: tuple[Saving, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        savings = ", ".join(
            f"{saving.low_ms:.2g} to {saving.high_ms:.2g} ms of a call at batch {saving.batch}"
            for saving in self.savings
        )
        columns = f"{self.columns} column{'s' * (self.columns > 1)}"
        return (
            f"expected gain: about {savings} ({columns} in the graph, as in other models on two "
            "cores; more with more ids or larger dimensions)"
        )


def expected_gain(report: FusionReport) -> Gain | None:
    """Returns what a rewrite is likely to save, None where nothing like it was measured.

    Args:
        report: of a model that is not rewritten yet.
    """
    columns = sum(
        all(copy.form == FORM for copy in column.copies) for column in distinct_columns(report)
    )
    if not columns:
        return None
    savings = (
        Saving(batch, columns * low / 1e3, columns * high / 1e3)
        for batch, (low, high) in SAVED_US.items()
    )
    return Gain(columns, tuple(savings))
