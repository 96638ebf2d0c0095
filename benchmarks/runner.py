"""Measuring cases, each in processes of its own, and keeping their results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Option, Row, combined

_ROOT = Path(__file__).resolve().parent.parent

#: No notes of TensorFlow on itself. Threads of torch and FBGEMM that have nothing to do sleep: they
#: would take cores from whose turn it is, and their loops over columns are no slower.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_WAIT_POLICY": "PASSIVE"}

#: What may be compared with fusion, or be measured beside it.
_BASELINES = (
    *("tf_keras", "torch", "fbgemm-gpu-cpu", "numba-cuda", "cupy-cuda12x", "cupy-cuda13x"),
    *("deepctr", "tensorflow-recommenders", "keras-rs"),
)

Say = Callable[[str], None]


def run(
    case: Case, given: Mapping[str, Option], quick: bool, processes: int | None, say: Say
) -> dict[str, Any]:
    """Measures a case.

    A process that fails does not end the others.

    Args:
        case: what to measure.
        given: options that differ from their defaults.
        quick: whether to try it out only: nothing is held against its bounds.
        processes: how many measure the same; None for as many as the case has.
        say: is told of progress.

    Returns:
        The result, for `write`.
    """
    options, count = case.chosen(given, quick), processes or case.processes
    found: list[Row] = []
    failures: list[str] = []
    machines, busy = list[dict[str, Any]](), [0.0]
    for label, part in _processes(case, options, count):
        rows, facts, failure = worker(case, part, _saying(say, label))
        found += rows
        failures += [f"{label}: {failure}"] if failure else []
        machines += [facts["machine"]] if facts else []
        busy += [facts["busy_elsewhere"]] if facts else []
    try:
        found = combined(found)
    except ValueError as difference:
        failures.append(f"{case.name}: {difference}")
        found = []
    failures += [f"{case.name}, {row.title}: {row.failure}" for row in found if row.failure]
    left_out = {"failure", *(("least", "most") if quick else ())}
    kept = [{k: v for k, v in row.to_dict().items() if k not in left_out} for row in found]
    return {
        "case": case.name,
        "about": case.about,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machines[-1] if machines else {},
        "processes": count,
        "options": {**options, "quick": quick},
        "busy_elsewhere": max(busy),
        "rows": [row for row in kept if "values" in row],
        "failures": failures,
    }


def _saying(say: Say, label: str) -> Say:
    return lambda line: say(f"{label}: {line}")


def _processes(
    case: Case, options: Mapping[str, Option], count: int
) -> Iterator[tuple[str, dict[str, Option]]]:
    """Yields a title and the options of each process."""
    for part in case.parts(options):
        words = [str(one) for name, one in part.items() if isinstance(options.get(name), tuple)]
        for number in range(count):
            label = ", ".join([case.name, *words, f"process {number + 1} of {count}"])
            yield label, part if number == 0 else {**part, **case.later}


def worker(
    case: Case, part: Mapping[str, Option], say: Say
) -> tuple[list[Row], dict[str, Any], str]:
    """What a new process measures: rows, facts, and why there are no more of them, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder) / "rows", Path(folder) / "errors"
        path.touch()
        command = ["worker", case.name, json.dumps(part), str(path)]
        with (
            errors.open("w") as stream,
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks", *command],
                cwd=_ROOT,
                env={**os.environ, **_ENVIRONMENT, **case.environment},
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                say(line.strip())
        found = [json.loads(line) for line in path.read_text().splitlines()]
        last = errors.read_text().strip()[-2000:]
    rows = [Row(**one) for one in found if "key" in one]
    facts: dict[str, Any] = next((one for one in found if "machine" in one), {})
    failure = f"exit code {process.returncode}\n{last}" if process.returncode else ""
    return rows, facts, failure


def work(case: Case, part: Mapping[str, Option], path: Path) -> None:
    """Measures in this process; appends a line of JSON for each row, and one of facts."""
    others = _busy_elsewhere() if has_tensorflow() else lambda: 0.0
    with path.open("a") as file:
        for row in case.rows(part):
            file.write(json.dumps(row.to_dict()) + "\n")
            file.flush()
            print(row.title, flush=True)
        facts = {"machine": machine(), "busy_elsewhere": others()}
        file.write(json.dumps(facts) + "\n")


def has_tensorflow() -> bool:
    """Whether it is there; kernels for GPUs are measured without."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        return False
    return True


def _busy_elsewhere() -> Callable[[], float]:
    from fusion.runtime.machine import busy_elsewhere

    return busy_elsewhere()


def machine() -> dict[str, str | int]:
    """The processor and the versions of what is measured, as far as it is there."""
    found: dict[str, str | int] = {"python": platform.python_version()}
    if has_tensorflow():
        from fusion.runtime.machine import machine as of_fusion

        found = of_fusion()
    for package in _BASELINES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def write(result: Mapping[str, Any], folder: Path) -> None:
    """Writes `<case>.json`, in a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result['case']}.json").write_text(json.dumps(result, indent=1) + "\n")


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a folder, by case, with their rows as `Row`."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "case" in result:
            found[result["case"]] = with_rows(result)
    return found


def with_rows(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with its rows as `Row`."""
    return {**result, "rows": [Row(**row) for row in result["rows"]]}


def commit() -> str:
    """The commit of the sources, with a `+` where they were changed since; empty without git."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        found = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
