"""All long checks, or some, each in a process of its own: `python -m tests.soak [CHECK ...]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

CHECKS = ("threads", "functions", "memory", "kernels", "hostile", "long_tests", "all_cases")


def main() -> int:
    """Runs the checks, also after one that failed; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("checks", nargs="*", help=f"all if none is named: {', '.join(CHECKS)}")
    checks = parser.parse_args().checks or CHECKS
    if unknown := {*checks} - {*CHECKS}:
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    failed = []
    start = time.monotonic()
    for check in checks:
        if subprocess.run([sys.executable, "-m", f"tests.soak.{check}"], check=False).returncode:
            failed.append(check)
    outcome = f"FAILED: {', '.join(failed)}" if failed else "passed"
    print(f"soak: {outcome}; {time.monotonic() - start:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
