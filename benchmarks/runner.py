"""Running workloads in processes of their own, and keeping what they measured."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.baselines import baselines
from benchmarks.results import combine
from fusion.runtime.machine import machine

_ROOT = Path(__file__).resolve().parent.parent

#: No notes of TensorFlow on itself. No GPU, which would draw the stock lookups to it. Threads of
#: torch and FBGEMM that have nothing to do sleep: they would take cores from whose turn it is, and
#: their loops over columns are no slower.
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        processes: of each workload, one after the other.
        quick: small tables, few columns and rounds: to try the suite out.
        scale: by which the tables' rows are multiplied.
        headlines: what the README shows of the workloads.
    """

    processes: int = 3
    quick: bool = False
    scale: float = 1.0
    headlines: bool = False


class WorkerFailed(Exception):
    """A process ended with an error; the message has what it printed."""


def run(names: Sequence[str], options: Options, out: Path, console: Console) -> list[str]:
    """Measures workloads and writes `<workload>.json` for each of them.

    Args:
        names: of the workloads.
        options: how to run them.
        out: a folder, which is made.
        console: where progress is shown.

    Returns:
        What went wrong, a line for each workload that has no result.
    """
    out.mkdir(parents=True, exist_ok=True)
    failures = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names) * options.processes)
        for name in names:
            found = []
            for number in range(options.processes):
                label = f"{name}, process {number + 1} of {options.processes}"
                progress.update(task, description=label)

                def say(line: str, label: str = label) -> None:
                    progress.update(task, description=f"{label}: {line}")

                try:
                    # Tracing a function for calls with fed tensors takes minutes with 1000 columns.
                    how = {**dataclasses.asdict(options), "end_to_end": number == 0}
                    found.append(run_worker(name, how, say))
                except WorkerFailed as failure:
                    failures.append(f"{name}: {failure}")
                    break
                progress.advance(task)
            else:
                facts = {
                    "quick": options.quick,
                    "scale": options.scale,
                    "headlines": options.headlines,
                    **combine(found),
                }
                write_result(out, name, found[0]["about"], options.processes, facts)
    return failures


def run_worker(name: str, options: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """What one process measured; it says on a line each what it has done.

    Raises:
        WorkerFailed: the process ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder) / "result.json", Path(folder) / "errors"
        with (
            errors.open("w") as stream,
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks",
                    "worker",
                    name,
                    json.dumps(options),
                    str(path),
                ],
                cwd=_ROOT,
                env={**os.environ, **_ENVIRONMENT},
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                say(line.strip())
        if process.returncode != 0 or not path.exists():
            last = errors.read_text().strip()[-2000:]
            raise WorkerFailed(f"exit code {process.returncode}\n{last}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def write_result(
    out: Path, name: str, about: str, processes: int, facts: Mapping[str, Any]
) -> None:
    """Writes `<name>.json`: the facts, what they are about, when and where they were measured."""
    result = {
        "workload": name,
        "about": about,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": {**machine(), **baselines()},
        "processes": processes,
        **facts,
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def commit() -> str:
    """The commit of the sources, with a `+` where they were changed since; empty without git."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        found = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
