"""Kernels run under Numba's CUDA simulator here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core import config

from benchmarks.gpu_simulator import quick_threads

config.ENABLE_CUDASIM = 1


@pytest.fixture(autouse=True, scope="package")
def _simulated_threads() -> Iterator[None]:
    """Lets the simulator's many threads meet soon."""
    with quick_threads():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
