"""In which column a difference between two models arises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.source import SourceModel
from fusion.saved_model.verify.columns import ColumnPair, Location, Pairing, paired_columns
from fusion.saved_model.verify.job import Job, Observed, Run
from fusion.saved_model.verify.outcome import read_outcomes
from fusion.saved_model.verify.processes import run_models
from fusion.saved_model.verify.result import ColumnDifference, Columns, Difference
from fusion.saved_model.verify.values import difference_of, unmatched

Array = NDArray[Any]


def locate(
    a: SourceModel,
    b: SourceModel,
    difference: Difference,
    recorded: Path | None,
    scratch: Path,
    timeout: float,
    tolerance: float,
    library: Path | None = None,
) -> Columns:
    """Runs the batch of a difference once more and compares column after column, in file order.

    Args:
        a: the first model.
        b: the second.
        difference: of an output.
        recorded: the directory of recorded batches, or None.
        scratch: a folder for the values.
        timeout: seconds for each of the two processes.
        tolerance, library: see `compare_models`.

    Returns:
        The first column that differs; or that none does, or why that cannot be said. Nothing that
        goes wrong here raises an error, because the difference is what the user asked for.
    """
    try:
        pairing = _pairing(a, b, difference.signature)
    except Exception as error:  # of a malformed graph: any kind
        return Columns(note=f"a graph makes no sense to fusion ({reason_of(error)})")
    if not pairing.pairs:
        return Columns(note="the models have no column that could be found in both")
    observed = (
        _observed([p.a for p in pairing.pairs], pairing.alone_a),
        _observed([p.b for p in pairing.pairs], pairing.alone_b),
    )
    runs = tuple(
        Run(model.path, scratch / name, seen)
        for model, name, seen in zip((a, b), ("columns_a", "columns_b"), observed, strict=True)
    )
    only = (difference.signature, difference.case)
    try:
        run_models(Job(a.path, runs, recorded, only, library), timeout)
        seen_a, seen_b = (_Seen.read(run) for run in runs)
    except ModelError as error:
        return Columns(note=str(error))
    return _compare(pairing, seen_a, seen_b, tolerance)


def _pairing(a: SourceModel, b: SourceModel, title: str) -> Pairing:
    def meta(model: SourceModel) -> Any:
        return next(m for m in model.meta_graphs if any(s.title == title for s in signatures(m)))

    return paired_columns(meta(a), meta(b))


def _observed(paired: Iterable[Location], alone: Iterable[Location]) -> tuple[Observed, ...]:
    return tuple(dict.fromkeys((at.function, at.tensor) for at in (*paired, *alone)))


@dataclass(frozen=True)
class _Seen:
    """The values of observed tensors, with the widths of columns in them, once per computation."""

    sights: dict[Observed, list[tuple[Array, Array]]]

    @staticmethod
    def read(run: Run) -> _Seen:
        """Reads what the worker wrote.

        Raises:
            ModelError: the batch was not run to the end.
        """
        outcomes = list(read_outcomes(run.directory))
        if len(outcomes) != 1 or outcomes[0][0].error is not None:
            why = outcomes[0][0].message if outcomes else "it did not run"
            raise ModelError(f"{run.model} cannot be looked into: {why}")
        sights: dict[Observed, list[tuple[Array, Array]]] = {}
        _, values = outcomes[0]
        for key, value in values.items():
            index, time, what = key.split("/")
            if what == "value":
                widths = values[f"{index}/{time}/widths"]
                sights.setdefault(run.observed[int(index)], []).append((value, widths))
        return _Seen(sights)

    def values(self, at: Location) -> list[Array]:
        """Returns the values of a column, one for each time it was computed."""
        sights = self.sights.get((at.function, at.tensor), [])
        if at.part is None:
            return [value for value, _ in sights]
        part = at.part
        starts = [int(widths[:part].sum()) for _, widths in sights]
        return [
            value[..., start : start + int(widths[part])]
            for (value, widths), start in zip(sights, starts, strict=True)
        ]


def _compare(pairing: Pairing, a: _Seen, b: _Seen, tolerance: float) -> Columns:
    first: ColumnDifference | None = None
    same = different = 0
    unknown = sum(bool(a.values(at)) for at in pairing.alone_a)
    unknown += sum(bool(b.values(at)) for at in pairing.alone_b)
    for pair in pairing.pairs:
        of_a, of_b = a.values(pair.a), b.values(pair.b)
        if not of_a and not of_b:
            continue  # of another signature
        if len(of_a) != len(of_b):
            unknown += 1
            continue
        unequal = unmatched(of_a, of_b, tolerance)
        same += unequal is None
        if unequal is not None:
            different += 1
            first = first or _difference(pair, *unequal, tolerance)
    return Columns(first=first, same=same, different=different, unknown=unknown)


def _difference(pair: ColumnPair, a: Array, b: Array, tolerance: float) -> ColumnDifference:
    """Describes the first row that differs, and in it the first element."""
    locations = tuple(dict.fromkeys(str(at) for at in (pair.a, pair.b)))
    difference = difference_of(a, b, tolerance)
    assert difference is not None
    if a.shape != b.shape or a.dtype != b.dtype:
        return ColumnDifference(pair.name, locations, None, difference.detail)
    first = np.unravel_index(int(np.flatnonzero(difference.differing)[0]), a.shape)
    row, rest = int(first[0]), [int(i) for i in first[1:]]
    where = f"row {row}, element {rest[0]}" if len(rest) == 1 else f"row {row}"
    detail = f"{where}: {a[first]} against {b[first]}; {difference.detail}"
    return ColumnDifference(pair.name, locations, row, detail)
