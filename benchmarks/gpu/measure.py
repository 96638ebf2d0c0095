"""The GPU kernels by themselves, without TensorFlow: are they right, and how fast are they?

Needs numba-cuda and torch or cupy for memory. Under Numba's CUDA simulator the memory is NumPy's,
and nothing is timed.
"""

from __future__ import annotations

import datetime
import platform
import subprocess
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu.memory import Memory, Workload, copy_bandwidth, workloads
from benchmarks.gpu.names import is_chosen
from benchmarks.gpu.prepared import Elements, prepare, random_elements


@dataclass(frozen=True)
class Choice:
    """What is checked and measured.

    Attributes:
        steps, workloads: beginnings of names; None for all.
        elements: of a step; 0 for a million times the scale.
    """

    steps: Sequence[str] | None = None
    workloads: Sequence[str] | None = None
    elements: int = 0


_ALL = Choice()
_PACKAGES = "numba", "numba-cuda", "numpy", "torch", "cupy-cuda12x", "cupy-cuda13x", "tensorflow"


def device() -> dict[str, Any]:
    """The GPU, its driver, and the versions of what was used."""
    from importlib.metadata import PackageNotFoundError, version

    from numba import cuda

    from fusion.gpu_ops.language.device import SIMULATED

    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if SIMULATED:
        return {"device": "Numba's CUDA simulator", **versions}
    name = cuda.get_current_device().name
    return {
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "driver": _driver_version(),
        "cuda": ".".join(map(str, cuda.driver.driver.get_version())),
        **versions,
    }


def _driver_version() -> str:
    """The version of NVIDIA's driver, "" where its own tool is missing."""
    try:
        order = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(order, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.split("\n")[0].strip()


def measure(
    scale: float,
    repeats: int,
    seed: int,
    choice: Choice = _ALL,
    keep: Callable[[dict[str, Any]], None] = lambda numbers: None,
) -> dict[str, Any]:
    """Checks the kernels by steps, and checks and measures workloads.

    One that fails does not end the others; its traceback is printed.

    Args:
        scale: of tables and batches.
        repeats: of what is timed.
        seed: of tables and ids.
        choice: of steps and workloads.
        keep: is given what was found so far behind each of them.

    Returns:
        What goes into `gpu.json`: the device, the bandwidth of a copy, the errors of the steps, the
        kernels that were launched, for each workload the error, the milliseconds, torch's, FBGEMM's
        and TensorFlow's, and the share of the bandwidth; and what failed.
    """
    from benchmarks.gpu import steps
    from fusion.gpu_ops.language.device import SIMULATED

    memory = Memory()
    numbers: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **device(),
        "scale": scale,
        "seed": seed,
        "copy_bytes_per_second": None,
        "workloads": [],
        "failures": [],
    }

    def tried(name: str, run: Callable[[], dict[str, Any]]) -> None:
        try:
            row = {"name": name, **run()}
        except Exception as failure:  # whatever it is, the others are worth knowing
            traceback.print_exc()
            numbers["failures"].append(f"{name}: {failure}")
        else:
            numbers["workloads"].append(row)
        numbers["kernels"] = sorted(memory.kernels)
        keep(numbers)

    count = choice.elements or max(int(1_000_000 * scale), 40)
    for name, step in steps.chosen(choice.steps):
        tried(f"{name}, {count} elements", partial(steps.check, step, memory, count, seed))
    if choice.steps is None and (missing := steps.not_launched(memory.kernels)):
        numbers["failures"].append(f"kernels that were not launched: {', '.join(missing)}")
    found = [one for one in workloads(scale) if is_chosen(one.name, choice.workloads)]
    elements = random_elements(found, memory, seed)
    if found and not SIMULATED:
        numbers["copy_bytes_per_second"] = copy_bandwidth(memory, repeats)
    copied = numbers["copy_bytes_per_second"]
    for workload in found:
        tried(workload.name, partial(_measured, workload, memory, elements, repeats, seed, copied))
    return numbers


def _measured(
    workload: Workload,
    memory: Memory,
    elements: Elements,
    repeats: int,
    seed: int,
    copied: float | None,
) -> dict[str, Any]:
    """The row of a workload, which is checked first; without a copy's bandwidth no times."""
    from benchmarks.gpu import rivals, tensorflow_side

    prepared = prepare(workload, memory, elements, seed)
    row: dict[str, Any] = {"columns": len(workload.columns)}
    lists = (one for pair in prepared.held for one in pair)
    with memory.allowing([prepared.words, prepared.out, *prepared.tables, *lists]):
        prepared.launch()
    row["error"] = prepared.check()
    if copied is None:
        return row
    row["milliseconds"] = memory.milliseconds(prepared.launch, repeats)
    row["bytes"] = prepared.moved()
    row["share"] = row["bytes"] / (row["milliseconds"] / 1e3) / copied
    row["torch_milliseconds"] = rivals.torch_milliseconds(prepared, repeats)
    row["fbgemm_milliseconds"] = rivals.fbgemm_milliseconds(prepared, repeats)
    return row | tensorflow_side.compared(workload, tensorflow_side.gpu(), seed, repeats)


def table(numbers: dict[str, Any]) -> str:
    """The numbers as a table in Markdown."""
    copied = numbers["copy_bytes_per_second"]
    driver = f", driver {numbers['driver']}" if numbers.get("driver") else ""
    speed = f", copies {copied / 1e9:,.0f} GB/s" if copied else ""
    lines = [
        f"{numbers['date']}, {numbers['device']}{driver}{speed}. Errors are relative to float64; "
        "the share is that of the copy's bandwidth, distinct rows counted once; caches are cold. "
        "TensorFlow's times are those of calls, by stock's ops and by the fused op.",
        "",
        "| workload | error | ms | share | torch ms | FBGEMM ms | stock TensorFlow ms | fused ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = "milliseconds", "torch_milliseconds", "fbgemm_milliseconds", "stock_ms", "fused_ms"
    for row in numbers["workloads"]:
        own, *others = (f"{row[name]:.3f}" if row.get(name) else "" for name in names)
        share = f"{row['share']:.0%}" if own else ""
        cells = (row["name"], f"{row['error']:.1e}", own, share, *others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
