"""The bodies of the ops' kernels: functions of a call's frame, by the modules that have them.

They need Numba, and are imported when one is compiled. Those for GPUs run on the host, too: they
take their inputs, have outputs allocated and leave the rest to the steps of their family.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fusion.runtime.tensorflow.spec import KernelFactory, OpSpec


def cpu_body(family: str, module: str) -> KernelFactory:
    """The factory of a body for CPUs: of `kernel_body(spec, types)` in a family's folder `cpu`."""
    return _Factory(f"fusion.ops.{family}.cpu.{module}", module)


def gpu_body(family: str, module: str) -> KernelFactory:
    """The factory of a body for GPUs: of `kernel_body(spec, types)` in a family's folder `gpu`."""
    return _GpuFactory(f"fusion.ops.{family}.gpu.{module}", f"gpu_{module}")


class _Factory:
    """Makes the body that a module has; it can be sent to another process."""

    def __init__(self, module: str, name: str) -> None:
        self.__name__ = name  # of which kernels have their names
        self.__module__ = module  # whose sources they are made from

    def __call__(self, spec: OpSpec, types: Mapping[str, str]) -> Any:
        return importlib.import_module(self.__module__).kernel_body(spec, types)

    def __repr__(self) -> str:
        return self.__module__


class _GpuFactory(_Factory):
    def __call__(self, spec: OpSpec, types: Mapping[str, str]) -> Any:
        from fusion.gpu_ops.host.device_methods import with_device

        return with_device(super().__call__(spec, types))
