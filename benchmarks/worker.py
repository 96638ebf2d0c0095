"""One process's measurements of one workload."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import roofline
from benchmarks.bags_side import FbgemmSide, TorchSide
from benchmarks.batch import Batch, draw_batch, draw_tables, traffic
from benchmarks.errors import Unsupported
from benchmarks.inputs import Bags
from benchmarks.measure import Timer, block, summary
from benchmarks.tensorflow_side import TensorFlowSide
from benchmarks.workloads import Program, Workload
from fusion.runtime.machine import busy_elsewhere
from fusion.saved_model.bench.timing import interleaved

Array = npt.NDArray[Any]
Side = TensorFlowSide | TorchSide | FbgemmSide

SIDES = ("stock", "stock_best", "fusion", "torch", "fbgemm")
ROW_SUMS = "row_sums"


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: times that each call gets, at least.
        seconds: time for the calls of a case beyond which there are no more rounds.
        end_to_end: whether calls with fed tensors are timed too.
        stream_megabytes: what is read to measure the memory's rate.
    """

    rounds: int = 20
    seconds: float = 4.0
    end_to_end: bool = True
    stream_megabytes: int = 1024


def measure(workload: Workload, effort: Effort, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measures all cases of a workload, and the machine beside it.

    Raises:
        RuntimeError: a side's output is not that of stock TensorFlow, or the fused side is not
            fused.
    """
    others = busy_elsewhere()
    found: dict[str, Any] = {
        "about": workload.about,
        "memory": memory_rates(effort.stream_megabytes),
        "cases": [],
    }
    for program in workload.programs:
        for case in _cases(program, effort):
            found["cases"].append(case)
            progress(f"{workload.name} {program.name} batch {case['batch']} {case['variant']}")
        gc.collect()
    found["busy_elsewhere"] = others()
    return found


def memory_rates(megabytes: int) -> dict[str, float]:
    """GB/s of reading in a row: one thread, all threads, and all threads from their own caches."""
    count = roofline.threads()
    return {
        "one_thread": roofline.streaming(1, megabytes),
        "all_threads": roofline.streaming(count, megabytes),
        "caches": count * roofline.streaming(1, 1, 50),
    }


def _cases(program: Program, effort: Effort) -> Iterator[dict[str, Any]]:
    sides, absent = _build(program)
    for size in program.batches:
        for variant, draw in program.draws(size):
            batch = draw_batch(program, size, draw)
            ready, missing = _load(sides, batch)
            outputs = _compare(program, ready, batch)
            times = _times(program, ready, batch, effort)
            if variant == "base" and effort.end_to_end:
                fed = _end_to_end(ready, batch, effort)
                times = {name: {**found, **fed.get(name, {})} for name, found in times.items()}
            yield {
                "program": program.name,
                "batch": size,
                "variant": variant,
                "draw": str(draw),
                "columns": program.lookups,
                "width": program.width,
                "tables": "constants" if program.frozen else "variables",
                "inputs": program.inputs,
                "ids": batch.ids(),
                "traffic": traffic(program, batch),
                "sides": {
                    name: {**times[name], **outputs.get(name, {}), **_facts(ready.get(name))}
                    for name in times
                },
                "absent": {**absent, **missing},
            }


def _facts(side: Side | None) -> dict[str, Any]:
    if not isinstance(side, TensorFlowSide):
        return {}
    ops = dict(list(side.ops.items())[:12])
    return {
        "columns_fused": side.columns_fused,
        "nodes": sum(side.ops.values()),
        "most_frequent_ops": ", ".join(f"{op} {count}" for op, count in ops.items()),
    }


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


def _compare(program: Program, sides: dict[str, Side], batch: Batch) -> dict[str, dict[str, Any]]:
    """How far each output is from stock's."""
    expected = sides["stock"].output()
    plain = not any(one.weighted or one.max_norm is not None for one in program.columns)
    longest = max(
        (int(one.lengths.max(initial=0)) for one in batch.columns if isinstance(one, Bags)),
        default=1,
    )
    found = {}
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
        found[name] = {"same_bits": equal, "largest_difference": gap}
    return found


def _times(
    program: Program, sides: dict[str, Side], batch: Batch, effort: Effort
) -> dict[str, dict[str, Any]]:
    """In-graph times; those of TensorFlow beside those of a graph that only makes the inputs."""
    timers: dict[str, Timer] = {}
    for name, side in sides.items():
        timers[name] = block(side.call)
        if isinstance(side, TensorFlowSide):
            timers[f"{name} inputs"] = block(side.inputs)
    if program.roofline:
        timers[ROW_SUMS] = _row_sums(program, sides, batch)
    times = interleaved(timers, effort.rounds, effort.seconds)
    found: dict[str, dict[str, Any]] = {}
    for name in (*sides, *([ROW_SUMS] if program.roofline else [])):
        whole = summary(times[name])
        inputs = summary(times[f"{name} inputs"]) if f"{name} inputs" in times else None
        found[name] = {"graph_ms": whole}
        if inputs is not None:
            found[name]["inputs_ms"] = inputs
        net = whole["median"] - (inputs["median"] if inputs else 0.0)
        # What is below a microsecond cannot be told from the inputs.
        found[name]["net_ms"] = max(net, 1e-3)
    return found


def _row_sums(program: Program, sides: dict[str, Side], batch: Batch) -> Timer:
    """The best random-row sum over the table that the fused side has, on all threads."""
    side, bags = sides["fusion"], batch.columns[0]
    assert isinstance(side, TensorFlowSide)
    assert isinstance(bags, Bags)
    table = side.table()
    run = roofline.row_sums(table, bags.ids, program.columns[0].ids[0], roofline.threads())
    fetch = roofline.best_fetch(run)
    np.testing.assert_allclose(run(fetch)[1], side.output(), rtol=1e-4, atol=1e-4)
    return lambda: run(fetch)[0]


def _end_to_end(sides: dict[str, Side], batch: Batch, effort: Effort) -> dict[str, dict[str, Any]]:
    timers = {
        name: block(side.fed(batch))
        for name, side in sides.items()
        if isinstance(side, TensorFlowSide)
    }
    times = interleaved(timers, effort.rounds, effort.seconds)
    return {name: {"end_to_end_ms": summary(found)} for name, found in times.items()}
