"""GPUs of this machine under whole ops of TensorFlow: with FUSION_GPU=1 in the environment.

Their driver's functions are called by way of Python, which logs them as `driver` does.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import tensorflow as tf

from fusion.gpu_ops.host.cuda_driver import Cuda
from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.runtime.cuda import launcher
from fusion.runtime.cuda.layout import LauncherRecord

#: Whether ops run on a GPU, and not in the simulator.
CHOSEN = os.environ.get("FUSION_GPU", "0") != "0"


class LoggedGpus(Cuda):
    """A `launcher.Gpus`.

    Attributes:
        log: the names of the driver's functions called, kernels by their own.
        problems: what went wrong in functions, and should not have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.problems: list[BaseException] = []
        self._names: dict[int, str] = {}
        self._lock = threading.Lock()
        self._logged: list[Any] = []

    @cached_property
    def functions(self) -> Mapping[int, int]:
        """Each logs its call."""
        from tests.gpu_ops.driver import TYPES

        found = {}
        for field, address in super().functions.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int32, *TYPES[field])
            self._logged.append(kind(self._logging(field, kind(address))))
            found[field] = ctypes.cast(self._logged[-1], ctypes.c_void_p).value or 0
        return found

    def _logging(self, field: int, function: Callable[..., int]) -> Callable[..., int]:
        name = launcher.FUNCTIONS[field]

        def called(*arguments: int) -> int:
            with self._lock:
                self.log.append(name)
                if field == LauncherRecord.launch:
                    self.log.append(self._names[arguments[0]])
            return function(*arguments)

        return called

    def load(self, kernel: int, gpu: int) -> int:
        """See `launcher.Gpus`."""
        handle = super().load(kernel, gpu)
        self._names[handle] = list(KERNELS)[kernel]
        return handle


@cache
def gpus() -> LoggedGpus:
    """The GPUs of this process."""
    found = LoggedGpus()
    if launcher.launcher(lambda: found).gpus is not found:
        raise RuntimeError("an op was run on a GPU before")
    return found


@contextmanager
def placed() -> Iterator[None]:
    """Places ops on the first GPU, while a graph is built."""
    gpus()
    with tf.device("GPU:0"):
        yield
