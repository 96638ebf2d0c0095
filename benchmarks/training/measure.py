"""One case: losses and variables of both sides compared, then their steps in turns."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import fusion
from benchmarks.measure import in_turns
from benchmarks.training.cases import Case
from benchmarks.training.sides import Side, side
from benchmarks.training.trace import trace
from fusion.runtime.machine import busy_elsewhere

#: So long a side's turn is, if a step takes less.
_TURN_SECONDS = 0.1
_MOST_STEPS = 50
#: Of the memory that is free, what tables and slots may take.
_SHARE = 0.85
TOLERANCE = 1e-5
"""Relative to a loss, and to the largest element of a variable: what a sum in another order may
make of it."""

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is done for a case.

    Attributes:
        seconds: for which the sides take turns; there are five rounds at least.
        traces: whether steps are traced too: the time of each kind of op, and allocations.
    """

    seconds: float = 15.0
    traces: bool = True


def measure(case: Case, effort: Effort, progress: Progress) -> dict[str, Any]:
    """What is measured of a case, in this process, with as many tables as there is memory for."""
    others = busy_elsewhere()
    asked, case = case, case.fitting(int(_SHARE * _available()))
    progress("stock")
    stock, fused = side(case), side(case)
    sides = {"stock": stock, "fused": fused}
    found: dict[str, Any] = {
        **dataclasses.asdict(case),
        "title": case.title,
        "columns_asked": asked.columns,
        **paired(stock, fused, case.steps, progress),
    }
    if case.reference_rows is not None:
        reference = dataclasses.replace(case, rows=case.reference_rows, reference_rows=None)
        sides["reference"] = side(reference)
        with fusion.fused():
            sides["reference"].start()
    progress("in turns")
    found |= timed(sides, effort.seconds)
    if effort.traces:
        progress("traces")
        found["traces"] = {
            name: trace(one.run, case.table_bytes).to_dict() for name, one in sides.items()
        }
    if not found["compared"]["equal"]:
        del stock, fused
        sides.clear()
        found["control"] = control(lambda: side(case), case.steps, progress)
    found["busy_elsewhere"] = others()
    return found


def control(build: Callable[[], Side], steps: int, progress: Progress) -> dict[str, Any]:
    """How two stock sides compare, see `compared`: threads may add numbers in any order."""
    return dict(paired(build(), build(), steps, progress, nullcontext)["compared"])


def paired(
    stock: Side,
    fused: Side,
    steps: int,
    progress: Progress,
    fuses: Callable[[], AbstractContextManager[None]] = fusion.fused,
) -> dict[str, Any]:
    """Starts both sides, one under fusion, takes steps with each, and compares them.

    Args:
        stock, fused: models that are alike, not started yet.
        steps: how many are taken before losses and variables are compared, at least 2.
        progress: is told what is done.
        fuses: gives the scope in which the fused side is started.

    Returns:
        What was fused, as `fused_columns` of `found_columns`, `fused_updates` of `found_updates`
        and the `reasons` of others; and how both compare, see `compared`.
    """
    losses = {"stock": stock.start()}
    before = fusion.stats()
    with fuses():
        losses["fused"] = fused.start()
    after = fusion.stats()
    for name, one in (("stock", stock), ("fused", fused)):
        progress(f"{steps} steps, {name}")
        losses[name] += [one.step() for _ in range(steps - len(losses[name]))]
    report = None if after.last_report is before.last_report else after.last_report
    columns, updates = ((), ()) if report is None else (report.columns, report.updates)
    reasons = {str(one.reason) for one in columns if not one.fused}
    reasons |= {str(one.reason) for one in updates if not one.fused}
    return {
        "fused_columns": sum(one.fused for one in columns),
        "found_columns": len(columns),
        "fused_updates": sum(one.fused for one in updates),
        "found_updates": len(updates),
        "reasons": sorted(reasons),
        "failures": after.failures - before.failures,
        "compared": compared(losses, stock.variables(), fused.variables()),
    }


def compared(losses: dict[str, list[float]], stock: Any, fused: Any) -> dict[str, Any]:
    """How losses and variables compare.

    Returns:
        `steps`; `first_step_apart`, from 1 on, None if all losses are equal to the bit;
        `losses_apart`, the largest relative difference; `variables`, how many; `apart`, a list of
        those that are not equal to the bit with the largest difference relative to the largest
        element; `equal`; and `close`, whether all is within `TOLERANCE`.
    """
    pairs = list(zip(losses["stock"], losses["fused"], strict=True))
    apart = [step for step, (one, other) in enumerate(pairs, 1) if not _is_same(one, other)]
    losses_apart = max(_apart(one, other) for one, other in pairs)
    different, count = [], 0
    for (name, one), (_, other) in zip(stock, fused, strict=True):
        count += 1
        if not _is_same(one, other):
            different.append({"name": name, "apart": _apart(one, other)})
    most = max([losses_apart, *(one["apart"] for one in different)])
    return {
        "steps": len(pairs),
        "first_step_apart": apart[0] if apart else None,
        "losses_apart": losses_apart,
        "variables": count,
        "apart": different,
        "equal": not apart and not different,
        "close": most <= TOLERANCE,
    }


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


def timed(sides: dict[str, Side], seconds: float) -> dict[str, Any]:
    """Milliseconds of a step by side, as `<name>_ms`, and ratios of rounds.

    Returns:
        Beside the milliseconds, medians of rounds, `ratio`: stock's time over fused's, and of a
        third side `growth`: fused's over the reference's; each the 10th percentile, the median and
        the 90th of the rounds.
    """
    sizes = [_steps_of_turn(one) for one in sides.values()]
    calls = [_turn(one, size) for one, size in zip(sides.values(), sizes, strict=True)]
    times = {
        name: [one / size for one in found]
        for name, size, found in zip(sides, sizes, in_turns(calls, seconds), strict=True)
    }
    found: dict[str, Any] = {
        f"{name}_ms": 1e3 * statistics.median(one) for name, one in times.items()
    }
    found["rounds"] = len(times["stock"])
    found["ratio"] = _ratios(times["stock"], times["fused"])
    if "reference" in times:
        found["growth"] = _ratios(times["fused"], times["reference"])
    return found


def _turn(one: Side, size: int) -> Callable[[], None]:
    return lambda: one.run(size)


def _steps_of_turn(one: Side) -> int:
    one.run(1)
    start = time.perf_counter()
    one.run(2)
    taken = (time.perf_counter() - start) / 2
    return max(1, min(_MOST_STEPS, round(_TURN_SECONDS / taken)))


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    return [float(np.quantile(ratios, share)) for share in (0.1, 0.5, 0.9)]


def _available() -> int:
    """Bytes of memory that a process can still take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("MemAvailable"))
    return int(line.split()[1]) << 10
