"""Programs and training under `enable()` with 26 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grappler.programs import PROGRAMS
from tests.grappler.test_programs import check_programs
from tests.grappler.test_training_long import PLAIN, check_steps


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_of_26_columns(kind: str, tmp_path: Path) -> None:
    check_programs(kind, tmp_path, (26,))


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
def test_two_hundred_steps(optimizer: str) -> None:
    check_steps(optimizer, PLAIN)
