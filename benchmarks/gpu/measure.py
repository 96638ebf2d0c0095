"""Bags of many columns on a GPU: are they right, and how fast are they?

Needs numba-cuda and torch or cupy for memory. Under Numba's CUDA simulator the memory is NumPy's,
and nothing is timed.
"""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Iterator

from benchmarks.case import Row, Value
from benchmarks.gpu import rivals, tensorflow_side
from benchmarks.gpu.memory import Memory, Workload, copy_bandwidth, workloads
from benchmarks.gpu.prepared import Elements, prepare, random_elements
from fusion.gpu_ops.language.device import SIMULATED


def measure(workload: str, scale: float, repeats: int, seed: int) -> Iterator[Row]:
    """Yields the device and its speed, and what each workload is.

    One that fails does not end the others; its traceback is printed.

    Args:
        workload: the beginning of names.
        scale: of tables and batches.
        repeats: of what is timed.
        seed: of tables and ids; 0 for another each time.
    """
    seed = seed or int.from_bytes(os.urandom(4), "little")
    memory = Memory()
    found = [one for one in workloads(scale) if one.name.startswith(workload)]
    elements = random_elements(found, memory, seed)
    copied = 0.0 if SIMULATED else copy_bandwidth(memory, repeats)
    speed: dict[str, Value] = {"seed": str(seed)} if SIMULATED else {"copies, GB/s": copied / 1e9}
    yield Row({"device": _device()}, speed)
    for one in found:
        try:
            yield Row(
                {"workload": one.name}, _measured(one, memory, elements, repeats, seed, copied)
            )
        except Exception as failure:  # whatever it is, the others are worth knowing
            traceback.print_exc()
            yield Row({"workload": one.name}, failure=f"{failure} (--seed {seed})")


def _device() -> str:
    """The GPU, the version of CUDA, and that of the driver if NVIDIA's own tool is there."""
    from numba import cuda

    if SIMULATED:
        return "Numba's CUDA simulator"
    name = cuda.get_current_device().name
    shown = name.decode() if isinstance(name, bytes) else str(name)
    version = ".".join(map(str, cuda.driver.driver.get_version()))
    order = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(order, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"{shown}, CUDA {version}"
    return f"{shown}, CUDA {version}, driver {done.stdout.splitlines()[0].strip()}"


def _measured(
    workload: Workload,
    memory: Memory,
    elements: Elements,
    repeats: int,
    seed: int,
    copied: float,
) -> dict[str, Value]:
    """What is found of a workload, which is checked first; without a copy's bandwidth no times.

    The error is relative to float64, the share that of the copy's bandwidth, with distinct rows
    counted once and cold caches.
    """
    prepared = prepare(workload, memory, elements, seed)
    lists = (one for pair in prepared.held for one in pair)
    with memory.allowing([prepared.words, prepared.out, *prepared.tables, *lists]):
        prepared.launch()
    values: dict[str, Value] = {"error": f"{prepared.check():.1e}"}
    if SIMULATED:
        return values
    taken = memory.milliseconds(prepared.launch, repeats)
    values |= {"ms": taken, "share": prepared.moved() / (taken / 1e3) / copied}
    others = {
        "torch, ms": rivals.torch_milliseconds(prepared, repeats),
        "FBGEMM, ms": rivals.fbgemm_milliseconds(prepared, repeats),
        **tensorflow_side.compared(workload, tensorflow_side.gpu(), seed, repeats),
    }
    return values | {name: one for name, one in others.items() if one is not None}
