"""The bodies of the ops' kernels for GPUs, which run on the host, like those for CPUs.

They take their inputs, have outputs allocated and leave the rest to the steps of their family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.ops.base.bodies import Factory
from fusion.runtime.tensorflow.spec import KernelFactory, OpSpec


def gpu_body(family: str, module: str) -> KernelFactory:
    """The factory of a body for GPUs: of `kernel_body(spec, types)` in a family's folder `gpu`."""
    return _GpuFactory(f"fusion.ops.{family}.gpu.{module}", f"gpu_{module}")


class _GpuFactory(Factory):
    def __call__(self, spec: OpSpec, types: Mapping[str, str]) -> Any:
        from fusion.gpu_ops.host.device_methods import with_device

        return with_device(super().__call__(spec, types))
