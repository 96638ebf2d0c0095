"""Kernels as code that a driver loads, kept on disk like those for the CPU."""

from __future__ import annotations

from importlib.metadata import version

from fusion.gpu_ops.kernels import KERNELS
from fusion.runtime import objects

#: What a kernel compiled here depends on besides this package and Numba.
_COMPILER = "numba-cuda"


def entry_of(name: str) -> str:
    """The name of a kernel in its code."""
    return f"fusion_{name}"


def machine_code(name: str, capability: tuple[int, int]) -> bytes:
    """The code of a kernel for GPUs of a compute capability, from disk or compiled now.

    That is machine code where ptxas is installed, else PTX, which the driver compiles.
    """
    key = f"cuda_{name}_sm{capability[0]}{capability[1]}_{version(_COMPILER)}"
    return objects.get(key, lambda: compile_kernel(name, capability))


def compile_kernel(name: str, capability: tuple[int, int]) -> bytes:
    """The code of a kernel, compiled now."""
    from fusion.gpu_ops import compile as compiler

    kernel = KERNELS[name]
    text, entry = compiler.ptx(kernel.make(), kernel.arguments, capability)
    text = text.replace(entry, entry_of(name))
    ptxas = compiler.assembler()
    if ptxas is None:
        return text.encode() + b"\0"
    return compiler.assemble(text, capability, ptxas)[0]
