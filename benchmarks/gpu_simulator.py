"""Numba's CUDA simulator, whose many threads are to meet soon, and to share what they share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

#: Seconds after which a simulated thread makes way for others; while it waits for them it is busy.
_TURN = 5e-4


def _shared_array(self: Any, shape: int, dtype: Any) -> Any:
    """As Numba's own, of which two threads at once get two arrays, and which reads all sources."""
    frame = sys._getframe(1)
    place = frame.f_code.co_filename, frame.f_lineno
    return self._allocations.setdefault(place, np.empty(shape, dtype))


@contextmanager
def quick_threads() -> Iterator[None]:
    """Makes the simulator quicker in a `with` block."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    turn, array = sys.getswitchinterval(), FakeCUDAShared.array
    sys.setswitchinterval(_TURN)
    FakeCUDAShared.array = _shared_array
    try:
        yield
    finally:
        FakeCUDAShared.array = array
        sys.setswitchinterval(turn)
