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

    def factory(spec: OpSpec, types: Mapping[str, str]) -> Any:
        found = importlib.import_module(f"fusion.ops.cpu.{module}")
        return found.kernel_body(spec, types)

    factory.__name__ = module.rpartition(".")[2]  # of which kernels have their names
    factory.__module__ = f"fusion.ops.cpu.{module}"  # whose sources they are made from
    return factory
