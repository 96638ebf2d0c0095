"""All long checks, each in a process of its own: `python -m tests.soak`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

CHECKS = ("threads", "functions", "memory", "kernels", "hostile", "long_tests", "all_cases")


def main() -> int:
    """Runs every check, also after one that failed; the result is the exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    failed = []
    start = time.monotonic()
    for check in CHECKS:
        if subprocess.run([sys.executable, "-m", f"tests.soak.{check}"], check=False).returncode:
            failed.append(check)
    outcome = f"FAILED: {', '.join(failed)}" if failed else "passed"
    print(f"soak: {outcome}; {time.monotonic() - start:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
