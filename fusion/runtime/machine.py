"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import tensorflow as tf

PACKAGES = ("keras", "numba", "numpy", "protobuf")


def machine() -> dict[str, str | int]:
    """The processor and the versions of what was measured."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tensorflow": tf.__version__,  # of whatever distribution
        **{package: version(package) for package in PACKAGES},
    }


def busy_elsewhere() -> Callable[[], float]:
    """What says how many cores others kept busy, on average since this call.

    Others are processes that are not this one, nor children of it that have ended.
    """
    begun, busy, own = time.monotonic(), _busy_seconds(), _own_seconds()

    def cores() -> float:
        elapsed = max(time.monotonic() - begun, 1e-9)
        return max(0.0, (_busy_seconds() - busy - (_own_seconds() - own)) / elapsed)

    return cores


def _busy_seconds() -> float:
    """Of all cores since the machine began: everything but idling and waiting for disks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
