"""Kernels run under Numba's CUDA simulator here."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba.core import config

config.ENABLE_CUDASIM = 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
