"""What of the GPUs works, for `fusion doctor`."""

from __future__ import annotations

from fusion.gpu_ops.host import availability, cuda_driver
from fusion.gpu_ops.host import compile as compiler
from fusion.ops.base import probe
from fusion.runtime.doctor import Fact


def facts() -> list[Fact]:
    """Why there are no kernels for GPUs, or the GPUs, the compiler, and whether an op runs."""
    why_not = availability.why_not()
    if why_not:
        return [("GPU kernels", f"none: {why_not}", True)]
    try:
        gpus = cuda_driver.Cuda()
        gpu_facts: list[Fact] = [
            (f"GPU {gpu}", gpus.description(gpu), True) for gpu in range(gpus.number)
        ]
    except RuntimeError as error:
        return [("GPU kernels", str(error), False)]
    reason = probe.verdict(again=True)
    ptxas = compiler.assembler()
    return [
        *gpu_facts,
        ("ptxas", ptxas or "not installed: the driver compiles kernels", True),
        ("GPU kernels", reason or "an op ran on TensorFlow's stream", not reason),
    ]
