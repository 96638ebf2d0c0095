"""Checks every kernel's use of memory at edge sizes: `python -m tests.soak.kernels`.

Kernels run outside TensorFlow, on tensors between pages that may not be touched, and under
valgrind if it is installed. First a kernel that does wrong on purpose shows that both find it.
"""

from __future__ import annotations

import argparse
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.soak import kernel_objects, kernel_plan, valgrind
from tests.soak.faulty import FAULTS
from tests.soak.plan import Case, Finding, Kernel, Plan, Report

#: What is to be found nowhere, and what valgrind cannot know to be wrong.
HARMLESS = frozenset({"none"})
HIDDEN_FROM_VALGRIND = frozenset({"write to an input"})

_PRINTED = 20


def run_guarded(kernels: dict[int, Kernel], cases: list[Case]) -> list[Finding]:
    """What is wrong with cases whose tensors lie between guard pages."""
    return _run("guarded", Plan(kernels, cases), prefix=()).findings


def run_watched(kernels: dict[int, Kernel], cases: list[Case]) -> tuple[list[Finding], int]:
    """What valgrind finds in our code, and how many errors are in the code of others."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "errors.xml"
        report = _run("watched", Plan(kernels, cases), valgrind.command(path), str(path))
        errors = valgrind.read_errors(path)
    places = zip(errors, [*report.error_cases, *["the end"] * len(errors)], strict=False)
    ours = [Finding(place, error.what) for error, place in places if error.ours]
    return report.findings + ours, len(errors) - len(ours)


def _run(memory: str, plan: Plan, prefix: Sequence[str], *rest: str) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "plan", Path(folder) / "result"
        given.write_bytes(pickle.dumps(plan))
        runner = [sys.executable, "-m", "tests.soak.kernel_runner", memory, given, result, *rest]
        subprocess.run([*prefix, *map(str, runner)], check=True)
        report: Report = pickle.loads(result.read_bytes())
    return report


def self_test_failures(findings: list[Finding], hidden: frozenset[str]) -> list[Finding]:
    """What the self-test did not find although it is there, or found although it is not."""
    found = {finding.case for finding in findings}
    return [
        Finding("self-test", f"{fault!r} was {'found' if fault in found else 'not found'}")
        for fault in FAULTS
        if (fault in found) != (fault not in hidden)
    ]


def check_guarded(cases: list[Case]) -> list[Finding]:
    """Runs all cases between guard pages, after the self-test, and prints what came of it."""
    start = time.monotonic()
    kernels = kernel_objects.kernel_objects(range(len(kernel_objects.KERNELS)))
    failures = self_test_failures(run_guarded(kernels, kernel_plan.self_test()), HARMLESS)
    findings = run_guarded(kernels, cases)
    print(
        f"  guard pages: {len(cases):,} cases, twice each: {len(findings)} findings; "
        f"self-test: {len(FAULTS) - len(HARMLESS) - len(failures)} of "
        f"{len(FAULTS) - len(HARMLESS)} faults found; {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return failures + findings


def check_watched(cases: list[Case]) -> list[Finding]:
    """Runs the cases under valgrind, likewise, if it is installed."""
    if valgrind.path() is None:
        print("  valgrind: not installed, nothing was run under it")
        return []
    start = time.monotonic()
    kernels = kernel_objects.kernel_objects_for(valgrind.PROCESSOR)
    hidden = HARMLESS | HIDDEN_FROM_VALGRIND
    failures = self_test_failures(run_watched(kernels, kernel_plan.self_test())[0], hidden)
    findings, elsewhere = run_watched(kernels, cases)
    print(
        f"  {valgrind.version()}: {len(cases):,} cases: {len(findings)} findings, "
        f"{elsewhere} errors in other code; "
        f"self-test: {len(FAULTS) - len(hidden) - len(failures)} of {len(FAULTS) - len(hidden)} "
        f"faults found; {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return failures + findings


def main() -> int:
    """The command line; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kernels", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the random parts of the cases")
    parser.add_argument("--watched", type=int, default=6000, help="most cases under valgrind")
    options = parser.parse_args()
    cases = kernel_plan.cases(options.seed, range(1, len(kernel_objects.KERNELS)))
    refused = sum(case.expected[0] != 0 for case in cases)
    users = kernel_objects.array_kernels()
    print(
        f"kernels: {len(users)} array kernels in {len(kernel_objects.KERNELS) - 1} op kernels; "
        f"{len(cases):,} cases, of which {refused:,} are refused and "
        f"{sum(case.starved for case in cases)} are repeated with every allocation failing",
        flush=True,
    )
    findings = [
        Finding(name, "no op has it in a kernel: it was not checked")
        for name, ops in users.items()
        if not ops
    ]
    findings += check_guarded(cases)
    watched = random.Random(options.seed).sample(cases, min(len(cases), options.watched))
    findings += check_watched(watched)
    for finding in findings[:_PRINTED]:
        print(f"  {finding.case}: {finding.what}")
    print(f"kernels: {'FAILED' if findings else 'passed'} with {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
