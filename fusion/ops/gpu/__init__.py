"""The bodies of the ops' kernels for GPUs: functions of a call's frame, like those for a CPU.

Each takes its inputs, has outputs allocated and leaves the rest to `fusion.gpu_ops.steps`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fusion.runtime.tensorflow.spec import KernelFactory, OpSpec


def kernel(module: str) -> KernelFactory:
    """The factory of the body that a module of this package has: its `kernel_body(spec, types)`."""
    return _Factory(module)


class _Factory:
    """Makes the body that a module has; it can be sent to another process."""

    def __init__(self, module: str) -> None:
        self.__name__ = f"gpu_{module}"  # of which kernels have their names
        self.__module__ = f"fusion.ops.gpu.{module}"  # whose sources they are made from

    def __call__(self, spec: OpSpec, types: Mapping[str, str]) -> Any:
        from fusion.gpu_ops.host.device_methods import with_device

        found = importlib.import_module(self.__module__)
        return with_device(found.kernel_body(spec, types))

    def __repr__(self) -> str:
        return self.__module__
