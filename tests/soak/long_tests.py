"""Tests that take too long for each change: the files `long_*.py` beside this one, by pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main() -> int:
    """Runs them; the result is the exit code."""
    files = {*Path(__file__).parent.glob("long_*.py")} - {Path(__file__)}
    options = ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    return int(pytest.main([*map(str, sorted(files)), *options]))


if __name__ == "__main__":
    sys.exit(main())
