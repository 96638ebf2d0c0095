"""The bodies of the ops' kernels for CPUs: functions of a call's frame.

They need Numba, and are imported when one is compiled. What bodies for GPUs do on the host, too, is
in the same modules.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fusion.runtime.tensorflow.spec import KernelFactory, OpSpec


def kernel(module: str) -> KernelFactory:
    """The factory of the body that a module has: its `kernel_body(spec, types)`."""
    return _Factory(module)


class _Factory:
    """Makes the body that a module has; it can be sent to another process."""

    def __init__(self, module: str) -> None:
        self.__name__ = module.rpartition(".")[2]  # of which kernels have their names
        self.__module__ = f"fusion.ops.cpu.{module}"  # whose sources they are made from

    def __call__(self, spec: OpSpec, types: Mapping[str, str]) -> Any:
        found = importlib.import_module(self.__module__)
        return found.kernel_body(spec, types)

    def __repr__(self) -> str:
        return self.__module__
