"""Shows that memory stays flat over a million small calls: `python -m tests.soak.memory`.

Each kind of call is repeated many times, in eager mode and in functions, forward and backward,
and with ids that are refused. The same is done with stock TensorFlow's ops in another process, to
tell whose growth is whose. Memory is what is resident, and what the C library's heap has in use:
with one arena the latter counts every byte, so that a leak of one small object in each call shows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

#: Growth in bytes per call, over the last half of the calls. The C library hands out no piece of
#: memory that is smaller than 32 bytes, so that anything kept by each call is far above.
_HEAP_LIMIT, _RESIDENT_LIMIT = 2.0, 8.0

#: Growth in bytes of the process, over all calls of one kind after the first ones.
_TOTAL_LIMIT = 16 << 20

#: The first calls, a share of all, fill caches and pools.
_WARM_UP = 0.1

_SAMPLES = 48

_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


@dataclass(frozen=True)
class Workload:
    """A kind of call: `once` makes `calls` of them."""

    name: str
    calls: int
    once: Callable[[], object]


@dataclass(frozen=True)
class Measurement:
    """Memory in bytes, [samples], while a kind of call was repeated, after the first calls."""

    name: str
    calls: int
    seconds: float
    resident: list[int]
    heap: list[int]

    def slope(self, values: list[int]) -> float:
        """Bytes per call over the last half of the samples, by least squares."""
        half = values[len(values) // 2 :]
        per_sample = np.polyfit(np.arange(len(half)), half, 1)[0]
        return float(per_sample * (len(values) - 1) / self.calls)

    @property
    def is_flat(self) -> bool:
        """Whether memory does not grow with the number of calls."""
        return (
            self.slope(self.heap) < _HEAP_LIMIT
            and self.slope(self.resident) < _RESIDENT_LIMIT
            and self.resident[-1] - self.resident[0] < _TOTAL_LIMIT
        )


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library, see mallinfo(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]


_libc = ctypes.CDLL(None)


def heap_in_use() -> int:
    """Bytes that were allocated from the C library's heap and not freed; 0 if it cannot tell."""
    if not hasattr(_libc, "mallinfo2"):  # it came with version 2.33
        return 0
    _libc.mallinfo2.restype = _MallInfo
    info = _libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def resident() -> int:
    """Bytes of the process that are in memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def measure(workload: Workload, calls: int) -> Measurement:
    """Repeats a kind of call at least `calls` times after warming up."""
    per_sample = max(1, -(-calls // (workload.calls * (_SAMPLES - 1))))
    for _ in range(int(per_sample * _SAMPLES * _WARM_UP)):
        workload.once()
    gc.collect()
    gc.freeze()  # what is there by now need not be looked at again and again
    in_memory, in_use, seconds = [], [], 0.0
    for sample in range(_SAMPLES):
        if sample:
            start = time.monotonic()
            for _ in range(per_sample):
                workload.once()
            seconds += time.monotonic() - start
        gc.collect()
        in_memory.append(resident())
        in_use.append(heap_in_use())
    gc.unfreeze()
    made = per_sample * (_SAMPLES - 1) * workload.calls
    return Measurement(workload.name, made, seconds, in_memory, in_use)


def run_side(side: str, calls: int) -> list[Measurement]:
    """All kinds of calls of one side, in a process of its own."""
    command = [sys.executable, "-m", "tests.soak.memory", "--side", side, "--calls", str(calls)]
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return [Measurement(**fields) for fields in json.loads(process.stdout)]


def measure_side(side: str, calls: int) -> list[Measurement]:
    """What `run_side` runs."""
    from tests.soak.small_calls import SHARES, workloads

    return [measure(workload, int(calls * SHARES[workload.name])) for workload in workloads(side)]


def report(ours: list[Measurement], stock: list[Measurement]) -> int:
    """Prints a table; the result is the number of kinds of calls that are not flat."""
    total, seconds = sum(m.calls for m in ours), sum(m.seconds for m in ours)
    print(f"memory: {total:,} calls in {seconds:.0f} s ({total / seconds:,.0f} calls/s)")
    print(
        "                               calls   calls/s  resident MB at 0, 25, 50, 75, 100 %"
        "       B/call  heap B/call  (stock's)"
    )
    growing = 0
    for mine, theirs in zip(ours, stock, strict=True):
        quarters = [mine.resident[round(k * (_SAMPLES - 1) / 4)] / 2**20 for k in range(5)]
        print(
            f"  {mine.name:27} {mine.calls:8,} {mine.calls / mine.seconds:9,.0f}  "
            f"{' '.join(f'{megabytes:7.2f}' for megabytes in quarters)}  "
            f"{mine.slope(mine.resident):8.3f} {mine.slope(mine.heap):8.3f}  "
            f"({theirs.slope(theirs.resident):.3f}, {theirs.slope(theirs.heap):.3f})"
            f"{'' if mine.is_flat else '  GROWS'}"
        )
        growing += not mine.is_flat
    print(f"memory: {f'FAILED, {growing} kinds of calls grow' if growing else 'passed'}")
    return growing


def main() -> int:
    """The command line; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.memory", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="of ours, of all kinds")
    parser.add_argument("--stock-calls", type=int, default=250_000, help="of stock's, likewise")
    parser.add_argument("--side", choices=("ours", "stock"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measurements = measure_side(options.side, options.calls)
        json.dump([asdict(m) for m in measurements], sys.stdout)
        return 0
    ours = run_side("ours", options.calls)
    return bool(report(ours, run_side("stock", options.stock_calls)))


if __name__ == "__main__":
    sys.exit(main())
