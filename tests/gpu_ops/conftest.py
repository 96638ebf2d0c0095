"""Kernels run under Numba's CUDA simulator here."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from numba.core import config

config.ENABLE_CUDASIM = 1


@pytest.fixture(scope="package", autouse=True)
def threads_take_turns() -> Iterator[None]:
    """Often: one of them waits in a loop for the others, and takes whole turns for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)
