"""A server as in a container: another user, a read-only root of files, no HOME, one processor.

python -m benchmarks.image MODEL ... [--seconds 10] [--repeats 3] [--out FOLDER]

Root alone can measure it. `examples.serving` is started for each model, with kernels that were
compiled before (`fusion warm`) and without any, where each start compiles and can keep nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.control_groups import limited_processors
from benchmarks.markdown import table
from benchmarks.runner import commit
from examples.serving.load_test import connect, made_up_requests
from fusion.runtime.machine import machine

_USER = 12345
_ROWS = 32  # of a request
_ROOT = Path(__file__).parents[1]
_ALONE = "mount --make-rprivate / && mount -o remount,ro,bind / && exec "


@contextmanager
def _started(model: Path, kernels: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a server; yields it and its address."""
    server = [sys.executable, "-m", "examples.serving", "--port", "0", str(model)]
    user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", *server]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(_ROOT),
        "FUSION_CACHE_DIR": str(kernels),
        "TMPDIR": "/dev/shm",  # TensorFlow itself cannot be imported without
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with (
        limited_processors(1) as enter,
        log.open("w") as errors,
        subprocess.Popen(
            ["unshare", "--mount", "/bin/sh", "-c", _ALONE + shlex.join(user)],
            cwd=_ROOT,
            env=environment,
            preexec_fn=enter,  # noqa: PLW1509
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        if enter is None:
            raise RuntimeError("no control group can be made here")
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split(" on ")
            if len(words) < 2:
                raise RuntimeError(f"{model}: its server did not start: {log.read_text()[-2000:]}")
            yield process, words[-1].split(",")[0]
        finally:
            process.terminate()
            process.wait()


def measure(model: Path, kernels: Path, seconds: float) -> dict[str, Any]:
    """Starts a server, calls it and ends it.

    Args:
        model: the folder of a SavedModel.
        kernels: the folder of kernels, which may be empty or absent.
        seconds: for which it is called.

    Returns:
        first_answer_s, p50_ms, p99_ms, memory_mib and peak_mib of the process, log: what it has
        written to its standard error.
    """
    asked = made_up_requests(str(model), "serving_default", _ROWS, 16)
    with tempfile.NamedTemporaryFile("r") as log:
        begun = time.monotonic()
        with _started(model, kernels, Path(log.name)) as (process, address), connect(address) as to:
            to.send(asked[0])
            first = time.monotonic() - begun
            times: list[float] = []
            while time.monotonic() < begun + first + seconds:
                start = time.perf_counter()
                to.send(asked[len(times) % len(asked)])
                times.append(1e3 * (time.perf_counter() - start))
            memory = _memory(process.pid)
        lines = log.read().splitlines()
    p50, p99 = np.percentile(times, [50, 99])
    return {"first_answer_s": first, "p50_ms": p50, "p99_ms": p99, **memory, "log": lines}


def _memory(process: int) -> dict[str, float]:
    status = Path(f"/proc/{process}/status").read_text()
    found = {key: re.search(rf"{key}:\s*(\d+) kB", status) for key in ("VmRSS", "VmHWM")}
    rss, peak = (int(one[1]) / 1024 for one in found.values() if one)
    return {"memory_mib": rss, "peak_mib": peak}


def report(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The medians and ranges of what was measured, by name, as a table of Markdown."""
    keys = ("first_answer_s", "p50_ms", "p99_ms", "memory_mib", "peak_mib")
    rows = []
    for name, runs in found.items():
        cells = []
        for key in keys:
            values = [run[key] for run in runs]
            cells.append(f"{statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g})")
        rows.append([name, *cells, str(len(runs[0]["log"]))])
    heads = ["", "first answer, s", "p50, ms", "p99, ms", "memory, MiB", "at most", "lines of log"]
    return table(heads, rows)


def main() -> int:
    """The command line; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image", description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a folder for image.json")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        warm, cold = Path(folder) / "warm", Path(folder) / "cold"
        models = [model.absolute() for model in options.models]
        prepare = [sys.executable, "-m", "fusion.cli", "warm", "--dir", str(warm)]
        subprocess.run([*prepare, *map(str, models)], check=True, stdout=subprocess.DEVNULL)
        for _ in range(options.repeats):
            for model in models:
                for name, kernels in (("kernels there", warm), ("no kernels", cold)):
                    run = measure(model, kernels, options.seconds)
                    found.setdefault(f"{model.name}, {name}", []).append(run)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        about = {"machine": machine(), "date": str(date.today()), "commit": commit()}
        text = json.dumps({**about, "runs": found}, indent=1)
        (options.out / "image.json").write_text(text + "\n")
    print(report(found))
    for name, runs in found.items():
        print(f"\n{name}:", *runs[0]["log"], sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
