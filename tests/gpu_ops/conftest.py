"""Kernels run under Numba's CUDA simulator here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config

config.ENABLE_CUDASIM = 1

#: Seconds after which a simulated thread makes way for others; while it waits for them it is busy.
_TURN = 5e-4


def _shared_array(self: Any, shape: int, dtype: Any) -> Any:
    """As Numba's own, of which two threads at once get two arrays, and which reads all sources."""
    frame = sys._getframe(1)
    place = frame.f_code.co_filename, frame.f_lineno
    return self._allocations.setdefault(place, np.empty(shape, dtype))


@pytest.fixture(autouse=True, scope="package")
def _simulated_threads() -> Iterator[None]:
    """Lets the simulator's many threads meet soon."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    turn, array = sys.getswitchinterval(), FakeCUDAShared.array
    sys.setswitchinterval(_TURN)
    FakeCUDAShared.array = _shared_array
    yield
    FakeCUDAShared.array = array
    sys.setswitchinterval(turn)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
