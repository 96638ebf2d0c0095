"""Compiles kernels for a GPU, on any machine: PTX by Numba, machine code by ptxas."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fusion.gpu_ops.kernels.registry import Kernel
from fusion.gpu_ops.layout.arguments import fields_of

#: Compute capabilities that kernels are tested for: Turing, Ampere, Hopper, Blackwell.
CAPABILITIES = ((7, 5), (8, 0), (9, 0), (10, 0))

#: That of PTX, which later GPUs take as well; nothing here has a use for what only they have.
_OLDEST = CAPABILITIES[0]

#: The wheels that have NVVM, of CUDA 12 and of later releases, and those that have it or ptxas.
_WITH_NVVM = ("nvidia-cuda-nvcc-cu12", "nvidia-nvvm")
_WHEELS = (*_WITH_NVVM, "nvidia-cuda-nvcc")

#: Where the CUDA toolkit may be if it is no wheel.
_HOMES = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
_SYSTEM = "/usr/local/cuda"


@cache
def tools() -> str:
    """A key of the compilers: numba-cuda's version, and a digest of the CUDA toolkit.

    Another toolkit writes PTX of another version, which a driver may not take. NVVM is not asked
    for its version, since cached code is loaded without Numba.
    """
    toolkit = [f"{wheel} {number}" for wheel in _WHEELS if (number := _version(wheel))]
    if not any(map(_version, _WITH_NVVM)):
        for home in filter(None, (*map(os.environ.get, _HOMES), _SYSTEM)):
            # NVIDIA's folders have the version in their name, and in this file.
            described = Path(home, "version.json")
            text = described.read_text() if described.is_file() else ""
            toolkit.append(f"{os.path.realpath(home)} {text}")
    return f"{version('numba-cuda')}-{hashlib.sha256(repr(toolkit).encode()).hexdigest()[:8]}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextmanager
def _compiling() -> Iterator[None]:
    """Lets Numba compile device functions where there is no such GPU, or none at all."""
    from numba.cuda import dispatcher

    get_current_device = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=_OLDEST)
    try:
        yield
    finally:
        dispatcher.get_current_device = get_current_device


def _type_of(annotation: Any) -> Any:
    """Numba's type of a kernel's parameter."""
    from numba.cuda import types

    fields = [*map(_type_of, fields_of(annotation))]
    return types.BaseTuple.from_types(fields, annotation) if fields else types.int64


def ptx(kernel: Kernel) -> tuple[str, str]:
    """The PTX of a kernel, and the name of its entry.

    Raises:
        RuntimeError: the entry does not take its arguments as a launch passes them.
    """
    from numba import cuda
    from numba.cuda import types

    signature = types.void(*map(_type_of, kernel.parameters))
    with _compiling():
        code, _ = cuda.compile(kernel.make(), signature, device=False, abi="numba", cc=_OLDEST)
    (entry,) = re.findall(r"^\s*\.visible \.entry (\w+)\(([^)]*)\)", code, re.MULTILINE)
    name, parameters = entry
    parameter_types = re.findall(r"\.param (\S+)", parameters)
    if parameter_types != [".u64"] * kernel.arguments:
        raise RuntimeError(
            f"{name} takes {parameter_types}, not {kernel.arguments} 64-bit integers"
        )
    head = f".entry {name}({parameters})"
    return code.replace(head, f"{head}\n.maxnreg {kernel.registers}"), name


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel, as ptxas reports them.

    Attributes:
        registers: of a thread.
        stack: bytes of a thread.
        spills: bytes of registers that a thread writes to memory and reads back.
        shared: bytes of a block.
    """

    registers: int
    stack: int
    spills: int
    shared: int


def assembler() -> str | None:
    """The path of ptxas, of NVIDIA's wheel; None if it is not installed."""
    try:
        import nvidia
    except ImportError:
        return None
    for root in nvidia.__path__:
        for path in sorted(Path(root).glob("*/bin/ptxas")):
            return str(path)
    return None


def assemble(code: str, capability: tuple[int, int], ptxas: str) -> tuple[bytes, Resources]:
    """The machine code of PTX, and its resources.

    Raises:
        RuntimeError: ptxas refuses it; the message is its own.
    """
    architecture = "sm_{}{}".format(*capability)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(code)
        command = [ptxas, "-v", f"-arch={architecture}", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ptxas for {architecture}: {done.stderr.strip()}")
        output = done.stderr

        def largest(pattern: str) -> int:
            return max(map(int, re.findall(pattern, output)), default=0)

        stores, loads = largest(r"(\d+) bytes spill stores"), largest(r"(\d+) bytes spill loads")
        resources = Resources(
            registers=largest(r"Used (\d+) registers"),
            stack=largest(r"(\d+) bytes stack frame"),
            spills=max(stores, loads),
            shared=largest(r"(\d+) bytes smem"),
        )
        return target.read_bytes(), resources
