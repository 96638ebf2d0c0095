"""The bodies of the ops' kernels for CPUs: functions of a call's frame, by the modules with them.

They need Numba, and are imported when one is compiled.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fusion.runtime.tensorflow.spec import KernelFactory, OpSpec


def cpu_body(family: str, module: str) -> KernelFactory:
    """The factory of a body for CPUs: of `kernel_body(spec, types)` in a family's folder `cpu`."""
    return Factory(f"fusion.ops.{family}.cpu.{module}", module)


class Factory:
    """Makes the body that a module has; it can be sent to another process."""

    def __init__(self, module: str, name: str) -> None:
        self.__name__ = name  # of which kernels have their names
        self.__module__ = module  # whose sources they are made from

    def __call__(self, spec: OpSpec, types: Mapping[str, str]) -> Any:
        """The body of an op, for its dtypes."""
        return importlib.import_module(self.__module__).kernel_body(spec, types)

    def __repr__(self) -> str:
        return self.__module__
