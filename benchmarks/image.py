"""A server as in a container: another user, a read-only root of files, no HOME, one processor.

Root alone can measure it. `examples.serving` is started for each model, with kernels that were
compiled before (`fusion warm`) and without any, where each start compiles and can keep nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.case import DETAILS, Key, Row
from benchmarks.measure import memory, percentiles
from benchmarks.processes import limited_processors
from examples.serving.load_test import connect, made_up_requests

_USER = 12345
_ROWS = 32  # of a request
_ROOT = Path(__file__).parents[1]
_ALONE = "mount --make-rprivate / && mount -o remount,ro,bind / && exec "


def measure(model: str, seconds: float) -> Iterator[Row]:
    """Yields what a server did that was started with kernels, and another one without.

    Args:
        model: the folder of a SavedModel.
        seconds: for which each is called.
    """
    path = Path(model).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        warm, cold = Path(folder) / "warm", Path(folder) / "cold"
        prepare = [sys.executable, "-m", "fusion.cli", "warm", "--dir", str(warm), str(path)]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        for name, kernels in (("kernels there", warm), ("no kernels", cold)):
            yield from _called(path, name, kernels, seconds)


def _called(model: Path, name: str, kernels: Path, seconds: float) -> Iterator[Row]:
    """Starts a server with a folder of kernels, which may be absent, calls it and ends it."""
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
                times.append(time.perf_counter() - start)
            rss, most = (memory(field, process.pid) / 2**20 for field in ("VmRSS", "VmHWM"))
        lines = log.read().splitlines()
    values = {
        "first answer, s": first,
        **percentiles(times),
        "memory, MiB": rss,
        "at most": most,
        "lines of log": len(lines),
    }
    key: Key = {"model": model.name, "": name}
    yield Row(key, values)
    for number, text in enumerate(lines, 1):
        yield Row({**key, "line": number}, {"text": text}, f"{DETAILS}the log")


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
