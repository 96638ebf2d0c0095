"""Damaged and hostile models never harm the tool: `python -m tests.soak.hostile`.

`fusion rewrite` runs on each of a thousand mutants of a few good models, in a process forked from
one that has imported TensorFlow. It must end with status 0 and a complete model that its
verification accepted, or with status 2, one line, and nothing written; within a minute, and
without much memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 60
MEMORY = 256 << 20
"""What the tool may need beyond four times the file, in bytes."""

_TIMEOUT = 20  # of a model in the verification, of which there are two
_DATA = 8 << 30  # so that a defect cannot take the machine down
KINDS = ("tf2", "v1_ref", "example", "v1_resource", "keras")


@dataclass(frozen=True)
class Run:
    """One run of the tool.

    Attributes:
        outcome: "rewritten", "copied", "refused" or what went wrong.
        said: the first line on standard error.
        seconds: how long it took.
        grown: by how many bytes memory grew.
    """

    outcome: str
    said: str = ""
    seconds: float = 0.0
    grown: int = 0

    @property
    def good(self) -> bool:
        """Whether the tool did what it should."""
        return self.outcome in ("rewritten", "copied", "refused")


class _Forked:
    """Stands in for a `subprocess.Popen` of `python -m MODULE ...`, without starting Python."""

    def __init__(
        self, command: list[str], cwd: str, env: dict[str, str], stdout: Any, **_: Any
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            os.chdir(cwd)
            os.environ.update(env)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            module, *sys.argv[1:] = command[2:]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def rewrite(src: Path, dst: Path, *options: str) -> Run:
    """Runs `fusion rewrite SRC DST` in a forked process and judges what it did.

    TensorFlow must be imported, and nothing of it be used yet: its threads do not survive a fork.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "stderr")
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _in_child(["rewrite", *options, str(src), str(dst)], said)
        status = _wait(child, start + SECONDS)
        seconds = time.monotonic() - start
        lines = said.read_text(errors="replace").splitlines() if said.exists() else []
    if status is None:
        return Run("took too long", seconds=seconds)
    if status < 0:
        return Run(f"crashed: {signal.Signals(-status).name}", seconds=seconds)
    grown = int(lines.pop().rpartition(" ")[2]) if lines else 0
    outcome = _judged(src, dst, status, lines, grown)
    return Run(outcome, lines[0] if lines else "", seconds, grown)


def _judged(src: Path, dst: Path, status: int, lines: list[str], grown: int) -> str:
    if grown > 4 * (src / "saved_model.pb").stat().st_size + MEMORY:
        return "took too much memory"
    if left := list(dst.parent.glob(".fusion-*")):
        return f"left {left[0].name}"
    if status == 2:
        if dst.exists() or len(lines) != 1 or not lines[0].startswith("fusion: error: "):
            return f"{len(lines)} lines, " + ("a destination" if dst.exists() else "")
        return "refused"
    if status:
        return f"status {status}"
    if not (dst / "fusion.json").is_file():
        return "no complete destination"
    new, old = ((path / "saved_model.pb").read_bytes() for path in (dst, src))
    return "copied" if new == old else "rewritten"


def _in_child(arguments: list[str], said: Path) -> NoReturn:
    """Runs the command line with standard error in a file, whose last line tells the memory."""
    from fusion.cli import main
    from fusion.saved_model.verify import compare

    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))
        os.setsid()
        with open(said, "wb") as file:
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        compare.subprocess.Popen = _Forked  # type: ignore[attr-defined, assignment, misc]
        before = _status_bytes("VmRSS")
        status = main(arguments)
        print(f"grown {_status_bytes('VmHWM') - before}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def _wait(child: int, deadline: float) -> int | None:
    """Returns the exit code, or None after ending what still runs at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_mutants(
    model: Path, seeds: range, verified: float = 1.0, keep: Path | None = None
) -> tuple[Counter[str], list[str]]:
    """Rewrites a mutant of `model` for each seed.

    Args:
        model: a good SavedModel.
        seeds: what the mutants are made from.
        verified: the share of them that are verified.
        keep: where those are kept that were handled wrongly.

    Returns:
        How often each outcome was, and a line for each wrong one.
    """
    from tests.saved_model.mutations import mutant

    content = (model / "saved_model.pb").read_bytes()
    file = model / "fingerprint.pb"
    fingerprint = file.read_bytes() if file.is_file() else None
    counts: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        src = Path(name, "src")
        shutil.copytree(model, src)
        for seed in seeds:
            made = mutant(content, fingerprint, seed)
            (src / "saved_model.pb").write_bytes(made.content)
            if fingerprint is not None:
                file = src / "fingerprint.pb"
                file.write_bytes(fingerprint if made.fingerprint is None else made.fingerprint)
            options = ["--timeout", str(_TIMEOUT)]
            options += [] if seed % 100 < 100 * verified else ["--no-verify"]
            done = rewrite(src, Path(name, "dst"), *options)
            counts[done.outcome] += 1
            if not done.good:
                what = f"{model.name} {seed} {made.name}: {done.outcome}: {done.said}"
                wrong.append(f"{what} ({done.seconds:.0f} s, {done.grown >> 20} MiB)")
                if keep is not None:
                    shutil.copytree(src, keep / f"{model.name}-{seed}", dirs_exist_ok=True)
            if os.environ.get("HOSTILE_LOG"):
                print(model.name, seed, made.name, done, flush=True)
            for left in Path(name).iterdir():
                if left != src:
                    shutil.rmtree(left)
    return counts, wrong


def main() -> int:
    """Runs the check; the result is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="mutants in all")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--verified", type=float, default=1.0, help="the share that is verified")
    parser.add_argument("--models", type=Path, help="built models; else they are built")
    parser.add_argument("--keep", type=Path, help="a folder for models handled wrongly")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start = time.monotonic()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        models = given.models
        if models is None:
            command = [sys.executable, "-m", "tests.saved_model.models", name]
            env = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
            subprocess.run(command, check=True, env=env, capture_output=True)
            models = Path(name)
        import fusion.cli
        import fusion.saved_model.verify.worker  # noqa: F401  (imports TensorFlow)

        share = -(-given.count // len(KINDS))
        for place, kind in enumerate(KINDS):
            first = given.start + place * share
            seeds = range(first, min(first + share, given.start + given.count))
            found, bad = run_mutants(models / kind, seeds, given.verified, given.keep)
            counts += found
            wrong += bad
    for line in wrong:
        print(line)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    print(f"hostile: {told}; {time.monotonic() - start:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
