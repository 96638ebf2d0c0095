"""The code of kernels that the driver loads, cached on disk like that for the CPU."""

from __future__ import annotations

import contextlib

from fusion.gpu_ops.host import compile as compiler
from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.runtime.native import objects

#: Modules whose functions stand for the CPU's in any kernel (`device.instead`).
_STAND_INS = ("fusion.gpu_ops.kernels.elements",)


def entry_of(name: str) -> str:
    """The name of a kernel in its code."""
    return f"fusion_{name}"


def sources_of(name: str) -> tuple[str, ...]:
    """The modules that a kernel is made from, see `objects.Recipe`."""
    return KERNELS[name].make.__module__, *_STAND_INS


def text(name: str) -> str:
    """The PTX of a kernel, from disk or compiled now."""

    def compile_it() -> bytes:
        code, entry = compiler.ptx(KERNELS[name])
        return code.replace(entry, entry_of(name)).encode()

    return objects.get(f"ptx_{name}_{compiler.tools()}", compile_it, *sources_of(name)).decode()


def code(name: str, capability: tuple[int, int]) -> bytes:
    """What the driver loads for a kernel on GPUs of a compute capability.

    That is machine code where ptxas is installed and knows such GPUs; else PTX, which the driver
    compiles.
    """
    ptxas = compiler.assembler()
    if ptxas is not None:
        key = f"cubin_{name}_sm{capability[0]}{capability[1]}_{compiler.tools()}"
        with contextlib.suppress(RuntimeError, OSError):
            sources = sources_of(name)
            return objects.get(
                key, lambda: compiler.assemble(text(name), capability, ptxas)[0], *sources
            )
    return text(name).encode() + b"\0"
