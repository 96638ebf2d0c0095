"""Embedding variables under strategies of `tf.distribute`: checks of `replicas`, by one process."""

from __future__ import annotations

import json
import sys

import pytest

from tests import zygote
from tests.embedding_variables import replicas


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """What the checks that failed have raised."""
    program = [sys.executable, "-m", "tests.embedding_variables.replicas"]
    run = zygote.run(program, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", replicas.CHECKS)
def test_strategies(check: str, failed: dict[str, str]) -> None:
    assert check not in failed, failed[check]
