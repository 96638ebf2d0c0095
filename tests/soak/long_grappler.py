"""Programs and training under `enable()` with 26 columns, and processes that end with work left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grappler import test_lock, test_updates_of_fit
from tests.grappler.fitted import OPTIMIZERS
from tests.grappler.programs import PROGRAMS
from tests.grappler.test_programs import check_programs
from tests.grappler.test_training_long import PLAIN, WEIGHTED, check_steps
from tests.grappler.test_updates_of_fit import KERAS
from tests.grappler.training_steps import Column


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_of_26_columns(kind: str, tmp_path: Path) -> None:
    check_programs(kind, tmp_path, (26,))


@pytest.mark.parametrize(
    ("optimizer", "columns"),
    [("sgd", PLAIN), ("adagrad", PLAIN), ("ftrl", PLAIN), ("adam", WEIGHTED)],
)
def test_two_hundred_steps(optimizer: str, columns: list[Column]) -> None:
    check_steps(optimizer, columns, 200)


@pytest.mark.parametrize("_", range(12))
def test_a_process_ends_with_work_pending(_: int) -> None:
    test_lock.test_a_process_ends_with_work_pending()


def test_a_process_with_hardly_any_processor() -> None:
    test_lock.check("hardly_any_processor")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("module", KERAS)
def test_two_hundred_steps_of_fit(module: str, optimizer: str) -> None:
    test_updates_of_fit.check_steps(KERAS[module], optimizer, 200)
