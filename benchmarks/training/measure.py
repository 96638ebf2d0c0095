"""Steps of training: losses and variables of both sides compared, then their steps in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

import fusion
from benchmarks.case import DETAILS, Key, Row, Value
from benchmarks.lookups.draws import Distribution
from benchmarks.measure import calls_in_turns, ratios
from benchmarks.training.sides import Model, Side, side
from benchmarks.training.trace import Trace, trace

#: So long a side's turn is, if a step takes less.
_TURN_SECONDS = 0.1
_MAX_STEPS = 50
#: Of the memory that is free, what tables and slots may take.
_SHARE = 0.85
TOLERANCE = 1e-5
"""Relative to a loss, and to the largest element of a variable: what a sum in another order may
make of it."""

_LARGE = 1_000_000
#: Steps after which losses and variables are compared; fewer where each takes a second.
_STEPS, _STEPS_OF_LARGE = 200, 20
_OPS, _REASONS = 15, 5

#: Optimizers that leave rows outside the batch as they are: no fused step of theirs allocates what
#: a table has, nor takes longer for more rows.
_ROWS_OF_BATCH = ("sgd", "adagrad", "ftrl")
#: Rows of another fused model, and what a fused step of larger tables may take, over one of it.
_SMALL, _MAX_GROWTH = 10_000, 1.5

#: What stock's time over the fused one's should be at least.
_LEAST: Mapping[tuple[str, str, int], float] = {
    ("keras", "sgd", 10_000): 1.3,
    ("keras", "sgd", 1_000_000): 10.0,
    ("keras", "adagrad", 10_000): 3.0,
    ("keras", "adagrad", 1_000_000): 30.0,
    ("keras", "adam", 10_000): 1.5,
    ("keras", "adam", 1_000_000): 2.5,
    **{
        (framework, optimizer, 100_000): 1.3
        for framework in ("tf_keras", "compat.v1")
        for optimizer in ("sgd", "adagrad", "adam")
    },
}
COLUMNS = 26


def measure(
    framework: str,
    optimizer: str,
    rows: int,
    distribution: str,
    steps: int,
    columns: int,
    seconds: float,
    profile: bool,
    small: bool,
) -> Iterator[Row]:
    """Yields a row of a model, stock and fused; with `profile` one of each kind of op, too.

    Args:
        framework, optimizer, rows, columns: see `Model`; there are as many tables as memory has
            space for.
        distribution: of the ids, "uniform" or "power-law".
        steps: before the comparison; 0 for 200, or 20 of large tables.
        seconds: of rounds.
        profile: whether times of ops are told.
        small: whether to try it out only.
    """
    law = cast(Distribution, distribution.replace("-", " "))
    model = Model(framework, optimizer, rows, columns, distribution=law)
    steps = steps or (_STEPS_OF_LARGE if rows >= _LARGE else _STEPS)
    if small:
        model = replace(model, rows=max(100, rows // 100), columns=min(columns, 4))
        model = replace(model, hidden=(32,), batches=8)
        steps = min(steps, 10)
    fitting = int(_SHARE * _available()) // (model.bytes_needed // model.columns)
    model = replace(model, columns=max(1, min(fitting, model.columns)))
    yield from measured(model, steps, seconds, profile)


def measured(model: Model, steps: int, seconds: float, profile: bool = False) -> Iterator[Row]:
    """See `measure`."""
    sides = {"stock": side(model), "fused": side(model)}
    found = paired(sides["stock"], sides["fused"], steps)
    values, notes = found.values(), [*found.notes()]
    is_flat = model.framework == "keras" and model.optimizer in _ROWS_OF_BATCH
    most = {"fused: table-sized allocations": 0.0} if model.optimizer in _ROWS_OF_BATCH else {}
    if is_flat and model.rows >= _LARGE:
        sides["reference"] = side(replace(model, rows=_SMALL))
        with fusion.fused():
            sides["reference"].start()
        most[f"fused, over {_SMALL:,} rows"] = _MAX_GROWTH
    times = timed(sides, seconds)
    values = {**in_milliseconds(times), **values}
    if "reference" in times:
        values[f"fused, over {_SMALL:,} rows"] = ratios(times["fused"], times["reference"])
    traces = {k: trace(sides[k].run, model.table_bytes) for k in ("stock", "fused")}
    for name, one in traces.items():
        values[f"{name}: table-sized allocations"] = one.of_table_size
    if not found.is_equal:
        sides.clear()
        notes.append(control(lambda: side(model), steps))
    is_whole = model.columns == COLUMNS
    if not is_whole:
        notes.append(f"with {model.columns} tables")
    least = _LEAST.get((model.framework, model.optimizer, model.rows)) if is_whole else None
    key: Key = {"optimizer": model.optimizer, "rows": model.rows, "ids": model.distribution}
    yield Row(
        key,
        values,
        least={} if least is None else {"over stock": least},
        most=most,
        notes=notes,
        failure=found.failure(),
    )
    if profile:
        yield from _ops(key, traces)


def _ops(key: Key, traces: Mapping[str, Trace]) -> Iterator[Row]:
    """Yields the kinds of ops that take longest on either side."""
    longest = [op for one in traces.values() for op in [*one.milliseconds][:_OPS]]
    for op in dict.fromkeys(longest):
        cells = {
            f"{name} {what}": numbers[op]
            for name, one in traces.items()
            for what, numbers in (("ms", one.milliseconds), ("ops", one.calls))
            if op in numbers
        }
        yield Row({**key, "op": op}, cells, f"{DETAILS}a step, threads added up")


def in_milliseconds(times: Mapping[str, Any]) -> dict[str, Value]:
    """Milliseconds of a step of both sides, and how many times as fast the fused one is."""
    medians = {f"{name}, ms": 1e3 * float(np.median(times[name])) for name in ("stock", "fused")}
    return {**medians, "over stock": ratios(times["stock"], times["fused"])}


def control(build: Callable[[], Side], steps: int) -> str:
    """How two stock sides compare: threads may add numbers in any order."""
    found = paired(build(), build(), steps, nullcontext)
    return f"two stock models are equal to each other: {found}"


@dataclass(frozen=True)
class Compared:
    """How losses and variables of two sides compare, and what was fused of one of them.

    Attributes:
        steps: how many losses there are.
        first_step: from 1 on, the first one whose loss is not equal to the bit; 0 for none.
        losses: the largest relative difference of a loss.
        variables: by name the largest difference of those that are not equal to the bit, relative
            to the largest element.
        count: of all variables.
        report: of the fused side's graph; None if none was optimized.
        failures: graphs on which the pass failed.
    """

    steps: int
    first_step: int
    losses: float
    variables: Mapping[str, float]
    count: int
    report: Any = None
    failures: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether all is equal to the bit."""
        return not self.first_step and not self.variables

    def __str__(self) -> str:
        most = max([self.losses, *self.variables.values()])
        return f"{'yes' if self.is_equal else f'to {most:.0e}'}, {self.steps} steps"

    def apart(self) -> Iterator[str]:
        """Yields what is not equal."""
        if self.first_step:
            apart = f"at most {self.losses:.0e} of the loss"
            yield f"losses are not equal from step {self.first_step} on, by {apart}"
        if self.variables:
            named = ", ".join(f"{name} by {by:.0e}" for name, by in [*self.variables.items()][:5])
            yield (
                f"{len(self.variables)} of {self.count} variables are not equal, relative to the "
                f"largest element: {named}"
            )

    def failure(self) -> str:
        """Why the numbers do not count, or ""."""
        is_close = max([self.losses, *self.variables.values()]) <= TOLERANCE
        return "" if is_close else f"the fused model is not stock's: {'; '.join(self.apart())}"

    def values(self) -> dict[str, Value]:
        """How they compare, and what was fused."""
        found: dict[str, Value] = {"equal": str(self)}
        if self.report is not None:
            for kind, all_ in (("columns", self.report.columns), ("updates", self.report.updates)):
                found[f"fused {kind}"] = f"{sum(one.fused for one in all_)} of {len(all_)}"
        return found

    def notes(self) -> Iterator[str]:
        """Yields what is apart, and why what stays stock does."""
        yield from self.apart()
        if self.failures:
            yield f"**the pass failed on {self.failures} graphs**"
        found = () if self.report is None else (*self.report.columns, *self.report.updates)
        reasons = sorted({str(one.reason) for one in found if not one.fused})
        yield from (f"stays stock: {reason}" for reason in reasons[:_REASONS])
        if len(reasons) > _REASONS:
            yield f"stays stock: {len(reasons) - _REASONS} more reasons"


def paired(
    stock: Side,
    fused: Side,
    steps: int,
    fuses: Callable[[], AbstractContextManager[None]] = fusion.fused,
) -> Compared:
    """Starts both sides, one under fusion, takes steps with each, and compares them.

    Args:
        stock, fused: models that are alike, not started yet.
        steps: how many are taken before losses and variables are compared, at least 2.
        fuses: gives the scope in which the fused side is started.
    """
    losses = {"stock": stock.start()}
    before = fusion.stats()
    with fuses():
        losses["fused"] = fused.start()
    after = fusion.stats()
    for name, one in (("stock", stock), ("fused", fused)):
        losses[name] += [one.step() for _ in range(steps - len(losses[name]))]
    report = None if after.last_report is before.last_report else after.last_report
    found = compared(losses, stock.variables(), fused.variables())
    return replace(found, report=report, failures=after.failures - before.failures)


def compared(losses: Mapping[str, list[float]], stock: Any, fused: Any) -> Compared:
    """How losses and variables compare."""
    pairs = list(zip(losses["stock"], losses["fused"], strict=True))
    apart = (step for step, (one, other) in enumerate(pairs, 1) if not _is_same(one, other))
    different, count = dict[str, float](), 0
    for (name, one), (_, other) in zip(stock, fused, strict=True):
        count += 1
        if not _is_same(one, other):
            different[name] = _apart(one, other)
    most = max(_apart(one, other) for one, other in pairs)
    return Compared(len(pairs), next(apart, 0), most, different, count)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two floats or arrays have the same bits, -0 and 0 apart."""
    left, right = np.asarray(one), np.asarray(other)
    same: bool = left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return same


def _apart(one: Any, other: Any) -> float:
    left, right = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if np.array_equal(left, right, equal_nan=True):
        return 0.0
    difference = float(np.max(np.abs(left - right))) / max(float(np.max(np.abs(left))), 1e-30)
    # What is not a number is far from one.
    return difference if np.isfinite(difference) else float(np.finfo(np.float64).max)


def timed(sides: Mapping[str, Side], seconds: float) -> dict[str, list[float]]:
    """Seconds of a step of each side, in rounds."""
    sizes = {name: _steps_of_turn(one) for name, one in sides.items()}
    calls = {name: _turn(one, sizes[name]) for name, one in sides.items()}
    times = calls_in_turns(calls, seconds)
    return {name: [one / sizes[name] for one in found] for name, found in times.items()}


def _turn(one: Side, size: int) -> Callable[[], None]:
    return lambda: one.run(size)


def _steps_of_turn(one: Side) -> int:
    one.run(1)
    start = time.perf_counter()
    one.run(2)
    taken = (time.perf_counter() - start) / 2
    return max(1, min(_MAX_STEPS, round(_TURN_SECONDS / taken)))


def _available() -> int:
    """Bytes of memory that a process can still take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("MemAvailable"))
    return int(line.split()[1]) << 10
