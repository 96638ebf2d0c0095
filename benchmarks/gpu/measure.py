"""The GPU kernels by themselves, without TensorFlow: are they right, and how fast are they?

Needs numba-cuda and torch or cupy for memory. Under Numba's CUDA simulator the memory is NumPy's,
and nothing is timed.
"""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.gpu.memory import Memory, copy_bandwidth, workloads
from benchmarks.gpu.prepared import prepare


def device() -> dict[str, Any]:
    """The GPU, its driver, and the versions of what was used."""
    from importlib.metadata import version

    from numba import cuda

    from fusion.gpu_ops.language.device import SIMULATED

    versions = {"numba": version("numba"), "numba-cuda": version("numba-cuda")}
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
    names: Sequence[str] = (),
    keep: Callable[[dict[str, Any]], None] = lambda numbers: None,
) -> dict[str, Any]:
    """Checks and measures the workloads whose names start with one of `names`, by default all.

    Args:
        scale: of tables and batches.
        repeats: of what is timed.
        seed: of tables and ids.
        names: see above.
        keep: is given what was found so far behind each workload.

    Returns:
        What goes into `gpu.json`: the device, the bandwidth of a copy, the errors of the steps, and
        for each workload the error, the milliseconds, torch's, FBGEMM's and TensorFlow's, and the
        share of the bandwidth.
    """
    from benchmarks.gpu import rivals, steps, tensorflow_side
    from fusion.gpu_ops.language.device import SIMULATED

    memory = Memory()
    rows = steps.check(memory, max(int(1_000_000 * scale), 40), seed)
    copied = None if SIMULATED else copy_bandwidth(memory, repeats)
    numbers = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **device(),
        "scale": scale,
        "copy_bytes_per_second": copied,
        "workloads": rows,
    }
    for workload in workloads(scale):
        if names and not workload.name.startswith(tuple(names)):
            continue
        prepared = prepare(workload, memory, seed)
        row: dict[str, Any] = {"name": workload.name, "columns": len(workload.columns)}
        lists = (one for pair in prepared.held for one in pair)
        with memory.allowing([prepared.words, prepared.out, *prepared.tables, *lists]):
            prepared.launch()
        row["error"] = prepared.check()
        if SIMULATED:
            rows.append(row)
            continue
        row["milliseconds"] = memory.milliseconds(prepared.launch, repeats)
        row["torch_milliseconds"] = rivals.torch_milliseconds(prepared, repeats)
        row["fbgemm_milliseconds"] = rivals.fbgemm_milliseconds(prepared, repeats)
        row |= tensorflow_side.compared(workload, tensorflow_side.gpu(), seed, repeats)
        row["bytes"] = prepared.moved()
        assert copied is not None
        row["share"] = row["bytes"] / (row["milliseconds"] / 1e3) / copied
        rows.append(row)
        keep(numbers)
    return numbers


def table(numbers: dict[str, Any]) -> str:
    """The numbers as a table in Markdown."""
    copied = numbers["copy_bytes_per_second"]
    driver = f", driver {numbers['driver']}" if numbers.get("driver") else ""
    speed = f", copies {copied / 1e9:,.0f} GB/s" if copied else ""
    lines = [
        f"{numbers['date']}, {numbers['device']}{driver}{speed}. Errors are relative to float64; "
        "the share is that of the copy's bandwidth, distinct rows counted once. TensorFlow's times "
        "are those of calls, by stock's ops and by the fused op.",
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
