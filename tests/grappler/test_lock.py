"""Nobody waits for Python's lock for ever: each case has a process of its own, and a deadline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import zygote
from tests.grappler.lock_holders import DEADLINE, PROGRAMS

ROOT = Path(__file__).parents[2]


def check(name, start=zygote.run):
    """Runs a program to its end."""
    done = start(
        [sys.executable, "-m", "tests.grappler.lock_holders", name],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=2 * DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]


#: `hardly_any_processor` is slow by its nature: tests/soak/long_grappler.py.
@pytest.mark.parametrize(
    "name", sorted({*PROGRAMS} - {"exit_with_work_pending", "hardly_any_processor"})
)
def test_no_deadlock(name):
    check(name)


def test_a_process_ends_with_work_pending():
    """Again and again in tests/soak/long_grappler.py."""
    check("exit_with_work_pending", subprocess.run)
