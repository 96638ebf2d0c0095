"""All cases of the tests of which `make test` and `make test-all` run some, by pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Runs them, side by side; the result is the exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto"]
    options = ["--maxprocesses", "8", "--dist", "worksteal", "-p", "no:cacheprovider"]
    options += ["-o", "faulthandler_timeout=0"]  # some take longer than tests that hang may
    environment = os.environ | {"FUSION_TESTS": "every"}
    folder = Path(__file__).parents[1]
    return subprocess.run([*command, *options, folder], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
