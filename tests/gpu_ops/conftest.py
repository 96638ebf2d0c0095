"""Kernels run under Numba's CUDA simulator here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core import config

config.ENABLE_CUDASIM = 1


@pytest.fixture(autouse=True)
def _no_problems() -> Iterator[None]:
    """Nothing went wrong where it could not be raised."""
    yield
    if "tests.gpu_ops.driver" in sys.modules:
        from tests.gpu_ops.driver import gpus

        problems, gpus().problems = gpus().problems, []
        assert not problems


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
