"""Launches every GPU kernel, over poisoned memory, and compares it with NumPy in float64.

Needs numba-cuda, and torch or cupy for memory. Under Numba's CUDA simulator
(`NUMBA_ENABLE_CUDASIM=1`) memory is NumPy's.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from benchmarks.gpu.memory import Memory
from tests.gpu_kernels import steps


def main() -> int:
    """The command line; the result is the exit code, 1 if a kernel is wrong or not launched."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_kernels", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="beginnings of names, default all")
    parser.add_argument("--elements", type=int, default=1_000_000, help="of a step")
    parser.add_argument("--seed", type=int, help="of what is drawn; another each time by default")
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    memory, failures = Memory(), list[str]()
    for name, step in steps.chosen(options.steps):
        try:
            print(f"{name}: {steps.check(step, memory, options.elements, seed):.1e}", flush=True)
        except Exception as failure:  # whatever it is, the others are worth knowing
            traceback.print_exc()
            failures.append(f"{name}: {failure}")
    if not options.steps and (missing := steps.not_launched(memory.kernels)):
        failures.append(f"kernels that were not launched: {', '.join(missing)}")
    print(f"{len(memory.kernels)} kernels were launched, on {options.elements:,} elements a step")
    for message in failures:
        print(f"{message} (--seed {seed})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
