"""The machine that a measurement ran on, and how busy other processes keep it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tensorflow as tf

PACKAGES = ("keras", "numba", "numpy", "protobuf")


def machine() -> dict[str, str | int]:
    """The processor, the system and the versions of packages."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tensorflow": tf.__version__,  # of whatever distribution
        **{package: _version(package) for package in PACKAGES},
    }


def _version(package: str) -> str:
    """That of an installed package, or of its nightly build, which is a package of its own."""
    try:
        return version(package)
    except PackageNotFoundError:
        return version(f"{package}-nightly")


def busy_elsewhere() -> Callable[[], float]:
    """A function that returns how many cores other processes used, on average since this call.

    Children of this process count as its own once they have ended.
    """
    begun, busy, own = time.monotonic(), _busy_seconds(), _own_seconds()

    def cores() -> float:
        elapsed = max(time.monotonic() - begun, 1e-9)
        return max(0.0, (_busy_seconds() - busy - (_own_seconds() - own)) / elapsed)

    return cores


def _busy_seconds() -> float:
    """The busy time of all cores since boot: all but idle and I/O wait."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
