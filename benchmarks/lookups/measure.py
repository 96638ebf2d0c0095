"""One process's measurements of one workload."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.case import Key, Row
from benchmarks.lookups import roofline
from benchmarks.lookups.bags_side import FbgemmSide, TorchSide
from benchmarks.lookups.batch import Batch, Unsupported, draw_batch, draw_tables, traffic
from benchmarks.lookups.catalog import WORKLOADS
from benchmarks.lookups.draws import Bags
from benchmarks.lookups.tensorflow_side import TensorFlowSide
from benchmarks.lookups.workloads import RATIOS, TIMES, Program
from benchmarks.measure import Timer, block, in_turns

Array = npt.NDArray[Any]
Side = TensorFlowSide | TorchSide | FbgemmSide

SIDES = ("stock", "stock_best", "fusion", "torch", "fbgemm")
ROW_SUMS = "row_sums"
MEMORY = "Memory, read in a row"


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: times that each call gets, at least.
        seconds: time for the calls of a batch beyond which there are no more rounds.
        end_to_end: whether calls with fed tensors are timed too.
        stream_megabytes: what is read to measure the memory's rate.
    """

    rounds: int = 20
    seconds: float = 4.0
    end_to_end: bool = True
    stream_megabytes: int = 1024


def measure(
    workload: str, scale: float, headlines: bool, end_to_end: bool, small: bool
) -> Iterator[Row]:
    """Yields rows of times and of ratios of each batch, after the memory's rates.

    Raises:
        RuntimeError: a side's output is not that of stock TensorFlow, or the fused side is not
            fused.
    """
    found = WORKLOADS[workload]
    programs = found.of_headlines() if headlines else found.programs
    effort = Effort(end_to_end=end_to_end)
    if small:
        programs = tuple(program.quick() for program in programs)
        effort = Effort(5, 0.5, end_to_end, stream_megabytes=64)
    yield from measured([program.scaled(scale) for program in programs], effort)


def measured(programs: Sequence[Program], effort: Effort) -> Iterator[Row]:
    """See `measure`."""
    memory = memory_rates(effort.stream_megabytes)
    yield Row({"threads": roofline.threads()}, memory, MEMORY)
    for program in programs:
        yield from _rows(program, effort, memory)
        gc.collect()


def memory_rates(megabytes: int) -> dict[str, float]:
    """GB/s of reading in a row: one thread, all threads, and all threads from their own caches."""
    count = roofline.threads()
    return {
        "one thread, GB/s": roofline.streaming(1, megabytes),
        "all threads, GB/s": roofline.streaming(count, megabytes),
        "from caches, GB/s": count * roofline.streaming(1, 1, 50),
    }


def _rows(program: Program, effort: Effort, memory: Mapping[str, float]) -> Iterator[Row]:
    sides, absent = _build(program)
    for size in program.batches:
        for variant, draw in program.draws(size):
            batch = draw_batch(program, size, draw)
            ready, missing = _load(sides, batch)
            compared = _compare(program, ready, batch)
            times = _times(program, ready, batch, effort)
            moved = traffic(program, batch)
            key: Key = {"program": program.name, "batch": size, "draw": variant}
            limit = moved / memory["all threads, GB/s"] / 1e6
            yield Row(
                key,
                {
                    "ids": batch.ids(),
                    **times.net,
                    "inputs": times.inputs["fusion"],
                    "limit": limit,
                    "MB": moved / 1e6,
                    "GB/s": moved / times.net["fusion"] / 1e6,
                },
                TIMES,
            )
            over = {f"over {k}": one / times.net["fusion"] for k, one in times.net.items()}
            del over["over fusion"]
            over["headroom"] = times.net["stock"] / limit
            if variant == "base" and effort.end_to_end:
                fed = _end_to_end(ready, batch, effort)
                over["end to end"] = fed["stock"] / fed["fusion"]
            from_caches = moved / memory["from caches, GB/s"] / 1e6
            warnings = _warnings(program, ready, times, from_caches)
            missed = {**absent, **missing}.items()
            least = program.least.get(size, {}) if variant == "base" else {}
            yield Row(
                key,
                {**over, "nodes": _nodes(ready), "equal": compared},
                RATIOS,
                least={f"over {side}": ratio for side, ratio in least.items()},
                notes=[*warnings, *(f"no {name}: {reason}" for name, reason in missed)],
            )


def _nodes(sides: Mapping[str, Side]) -> str:
    """How many ops that do something stock's graph has, and fusion's."""
    found = [
        one.ops for one in (sides["stock"], sides["fusion"]) if isinstance(one, TensorFlowSide)
    ]
    return " to ".join(f"{sum(ops.values()):,}" for ops in found)


def _build(program: Program) -> tuple[dict[str, Side], dict[str, str]]:
    """All sides that can run a program, and why the others cannot."""
    tables = draw_tables(program)
    batch = draw_batch(program, program.batches[0], next(program.draws(program.batches[0]))[1])
    makers: dict[str, Callable[[], Side]] = {
        "stock": lambda: TensorFlowSide(program, tables, batch, "stock"),
        "stock_best": lambda: TensorFlowSide(program, tables, batch, "stock_best"),
        "fusion": lambda: TensorFlowSide(program, tables, batch, "fusion"),
        "torch": lambda: TorchSide(program, tables, batch),
        "fbgemm": lambda: FbgemmSide(program, tables, batch),
    }
    sides, absent = {}, {}
    for name in SIDES:
        try:
            sides[name] = makers[name]()
        except Unsupported as reason:
            absent[name] = str(reason)
    return sides, absent


def _load(sides: dict[str, Side], batch: Batch) -> tuple[dict[str, Side], dict[str, str]]:
    ready, missing = {}, {}
    for name, side in sides.items():
        try:
            side.load(batch)
            ready[name] = side
        except Unsupported as reason:
            missing[name] = str(reason)
    return ready, missing


def _compare(program: Program, sides: Mapping[str, Side], batch: Batch) -> str:
    """How far fusion's output is from stock's.

    Raises:
        RuntimeError: an output is further from stock's than rounding has it.
    """
    expected = sides["stock"].output()
    plain = not any(one.weighted or one.max_norm is not None for one in program.columns)
    longest = max(
        (int(one.lengths.max(initial=0)) for one in batch.columns if isinstance(one, Bags)),
        default=1,
    )
    found = ""
    for name, side in sides.items():
        output = side.output()
        bits = name == "fusion" and plain and program.host != "model"
        equal = output.shape == expected.shape and output.tobytes() == expected.tobytes()
        gap = float(np.max(np.abs(output - expected), initial=0.0))
        if not equal and (bits or not gap <= 1e-5 * (1 + longest)):
            raise RuntimeError(
                f"{program.name}, batch {batch.size}, {batch.draw}: {name} differs from stock "
                f"TensorFlow by up to {gap:.3g}"
            )
        if name == "fusion":
            found = "to the bit" if equal else f"within {gap:.0e}"
    return found


@dataclass(frozen=True)
class Times:
    """Milliseconds by side: net of a graph that only makes the inputs, and of that graph."""

    net: Mapping[str, float]
    inputs: Mapping[str, float]


def _times(program: Program, sides: Mapping[str, Side], batch: Batch, effort: Effort) -> Times:
    timers: dict[str, Timer] = {}
    for name, side in sides.items():
        timers[name] = block(side.call)
        if isinstance(side, TensorFlowSide):
            timers[f"{name} inputs"] = block(side.inputs)
    if program.roofline:
        timers[ROW_SUMS] = _row_sums(program, sides, batch)
    medians = {
        name: 1e3 * float(np.median(found))
        for name, found in in_turns(timers, effort.seconds, effort.rounds).items()
    }
    own = {name: medians.pop(f"{name} inputs", 0.0) for name in sides}
    # What is below a microsecond cannot be told from the inputs.
    return Times({k: max(one - own.get(k, 0.0), 1e-3) for k, one in medians.items()}, own)


def _row_sums(program: Program, sides: Mapping[str, Side], batch: Batch) -> Timer:
    """The best random-row sum over the table that the fused side has, on all threads."""
    side, bags = sides["fusion"], batch.columns[0]
    assert isinstance(side, TensorFlowSide)
    assert isinstance(bags, Bags)
    table = side.table()
    run = roofline.row_sums(table, bags.ids, program.columns[0].ids[0], roofline.threads())
    fetch = roofline.best_fetch(run)
    np.testing.assert_allclose(run(fetch)[1], side.output(), rtol=1e-4, atol=1e-4)
    return lambda: run(fetch)[0]


def _end_to_end(sides: Mapping[str, Side], batch: Batch, effort: Effort) -> dict[str, float]:
    """Seconds of calls that get every tensor as an argument."""
    timers = {
        name: block(side.fed(batch))
        for name, side in sides.items()
        if isinstance(side, TensorFlowSide)
    }
    times = in_turns(timers, effort.seconds, effort.rounds)
    return {name: float(np.median(found)) for name, found in times.items()}


def _warnings(
    program: Program, sides: Mapping[str, Side], times: Times, from_caches: float
) -> Iterator[str]:
    """Yields what makes numbers doubtful."""
    fusion, net = sides["fusion"], times.net["fusion"]
    assert isinstance(fusion, TensorFlowSide)
    if fusion.columns_fused != program.lookups:
        yield f"**{fusion.columns_fused} of {program.lookups} columns are fused**"
    if net < from_caches:
        yield (
            "**faster than the caches: the ratio is above the headroom, which is a bug in the "
            "benchmark**"
        )
    if net < 0.1 * times.inputs["fusion"]:
        yield "**the lookups take less than a tenth of what making the inputs takes**"
