"""Sixteen threads of mixed lookups give the right values: `python -m tests.soak.threads`.

First threads of two processes, all at once, are the first to use kernels that are yet to be
compiled. Then threads of this process do all kinds of jobs at random. Every result is compared,
bit by bit, with one that agreed with stock TensorFlow beforehand.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.soak.jobs import Job

_PROCESSES = 2
_PRINTED = 20


class Tally:
    """What threads did, and what went wrong."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def do(self, job: Job) -> None:
        """Does a job once."""
        wrong = job.check()
        with self._lock:
            self.done[job.kind] += 1
            if wrong:
                self.wrong.append(f"{job.kind}: {job.label}: {wrong}")


def in_threads(count: int, jobs_of: Callable[[int], Iterable[Job]]) -> Tally:
    """Does the jobs that each of `count` threads is given, all starting at once."""
    tally, start = Tally(), threading.Barrier(count)

    def work(place: int) -> None:
        start.wait()
        for job in jobs_of(place):
            tally.do(job)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def until(deadline: float, jobs: list[Job], seed: str) -> Iterable[Job]:
    """Random jobs, until it is so late."""
    rng = random.Random(seed)
    weights = [job.weight for job in jobs]
    while time.monotonic() < deadline:
        yield from rng.choices(jobs, weights)


def each_once(jobs: list[Job], place: int) -> Iterable[Job]:
    """All jobs, for each thread starting with another one."""
    return jobs[place % len(jobs) :] + jobs[: place % len(jobs)]


def cold_start(count: int, seed: int) -> Tally:
    """Threads of new processes that share an empty kernel cache, all using it first at once."""
    from tests.soak.jobs import random_cases, verified

    rng = np.random.default_rng(seed)
    cases = random_cases(rng, {"eager": 12, "function": 3, "session": 3})
    # Compiling takes long: one dtype will do.
    known = verified(replace(case, dtype="float32") for case in cases)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        given, cache = Path(folder) / "jobs", Path(folder) / "cache"
        given.write_bytes(pickle.dumps(known))
        command = [sys.executable, "-m", "tests.soak.threads", "--threads", str(count)]
        command += ["--cold", str(given)]
        environment = os.environ | {"FUSION_CACHE_DIR": str(cache)}
        processes = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            for _ in range(_PROCESSES)
        ]
        for process in processes:
            output, _ = process.communicate()
            if process.returncode:
                tally.wrong.append(f"a process ended with exit code {process.returncode}")
                continue
            done, wrong = pickle.loads(output)
            tally.done.update(done)
            tally.wrong += wrong
        # Beside kernels lies what is known of their sources.
        names = [path.name for path in cache.iterdir() if path.suffix != ".json"]
        tally.wrong += [f"{name} was left behind" for name in names if not name.endswith(".o")]
        tally.done["kernels compiled"] = len(names)
    return tally


def report(what: str, tally: Tally, seconds: float) -> int:
    """Prints what was done; the result is the number of things that went wrong."""
    kernels = tally.done.pop("kernels compiled", 0)
    calls = sum(tally.done.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.done.items()))
    compiled = f"; {kernels} kernels compiled" if kernels else ""
    print(
        f"threads, {what}: {calls:,} lookups in {seconds:.1f} s ({calls / seconds:,.0f} a second: "
        f"{kinds}){compiled}; {len(tally.wrong)} wrong",
        flush=True,
    )
    for wrong in tally.wrong[:_PRINTED]:
        print(f"  {wrong}")
    return len(tally.wrong)


def main() -> int:
    """The command line; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.threads", description=__doc__)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the lookups and their order")
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from tests.soak.jobs import all_jobs, fresh

    if options.cold:
        jobs = [fresh(*pair) for pair in pickle.loads(Path(options.cold).read_bytes())]
        tally = in_threads(options.threads, lambda place: each_once(jobs, place))
        sys.stdout.buffer.write(pickle.dumps((tally.done, tally.wrong)))
        return 0
    start = time.monotonic()
    tally = cold_start(options.threads, options.seed)
    wrong = report("first use of kernels", tally, time.monotonic() - start)
    jobs = all_jobs(options.seed)
    start = time.monotonic()
    deadline = start + options.seconds
    tally = in_threads(
        options.threads, lambda place: until(deadline, jobs, f"{options.seed} {place}")
    )
    wrong += report(f"{options.threads} at once", tally, time.monotonic() - start)
    print(f"threads: {'FAILED' if wrong else 'passed'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
