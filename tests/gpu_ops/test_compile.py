"""Kernels are compiled for GPUs, in a process with the real compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusion.gpu_ops.host.compile import CAPABILITIES
from fusion.gpu_ops.kernels.registry import KERNELS

Capability = tuple[int, int]

#: What ptxas says of the same code is the same, and kept with the kernels.
PROGRAM = """
import hashlib, json, subprocess, sys
from dataclasses import asdict
from fusion.gpu_ops.host import compile as compiler, modules
from fusion.runtime.cache import kernel_cache

ptxas = compiler.assembler()
version = ptxas and subprocess.run([ptxas, "--version"], check=True, capture_output=True).stdout
names, capabilities = json.loads(sys.argv[1])
for name in names:
    code = modules.text(name)
    for capability in capabilities:
        def resources():
            machine, resources = compiler.assemble(code, capability, ptxas)
            is_elf = machine[:4] == b"\\x7fELF"
            return json.dumps(asdict(resources) | {"is_elf": is_elf}).encode()

        found = {"name": name, "capability": capability, "contracted": "fma.rn" in code}
        if ptxas is not None:
            made_from = hashlib.sha256(f"{capability} {version} {code}".encode()).hexdigest()
            kept = kernel_cache.default().get(f"resources-{made_from[:24]}.json", resources)
            found |= json.loads(kept)
        print(json.dumps(found), flush=True)
"""


def compiled(names: list[str], capabilities: Sequence[Capability]) -> list[dict[str, Any]]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([names, capabilities])],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("part", [0, 1])
def test_kernels_fit_the_oldest_and_the_newest_gpus(part: int) -> None:
    """In two parts, side by side: each process must warm up, where they are not on disk yet.

    One part for the oldest, the other for the newest, and of kernels for each dtype those of two:
    `make soak` compiles all for every GPU.
    """
    names = [name for name in KERNELS if not name.endswith(("_bfloat16", "_float64"))]
    check_kernels(names[part::2], [CAPABILITIES[-part]])


def check_kernels(names: list[str], capabilities: Sequence[Capability]) -> None:
    """Compiles kernels for GPUs and looks at what they take."""
    found = compiled(names, capabilities)
    wanted = [(name, list(capability)) for name in names for capability in capabilities]
    assert [(result["name"], result["capability"]) for result in found] == wanted
    for result in found:
        # A product that is fused with a sum is rounded once where the CPU rounds twice.
        assert not result["contracted"], result
        if "registers" not in result:
            continue  # ptxas is not installed
        assert result["is_elf"], result
        assert max(result["spills"], result["stack"]) <= KERNELS[result["name"]].spilled, result
        assert 0 < result["registers"] <= KERNELS[result["name"]].registers, result
        assert result["shared"] <= 48 << 10, result


def test_what_a_driver_loads(tmp_path: Path) -> None:
    """Machine code for GPUs that ptxas knows, PTX for others; kept on disk, by names of our own.

    A kernel that would not find its arguments where a launch puts them is refused.
    """
    program = """
from fusion.gpu_ops.host import compile as compiler, modules
entry = modules.entry_of("fill_numbers").encode()
has_ptxas = compiler.assembler() is not None
for capability in (9, 0), (8, 9), (99, 0):
    code = modules.code("fill_numbers", capability)
    assert entry in code
    assert (code[:4] == b"\\x7fELF") == (has_ptxas and capability != (99, 0)), capability
from numba import cuda
from fusion.gpu_ops.kernels.registry import KERNELS
compile_one = cuda.compile
cuda.compile = lambda *given, **options: (
    compile_one(*given, **options)[0].replace(".param .u64", ".param .u32", 1), None
)
try:
    compiler.ptx(KERNELS["fill_numbers"])
    raise AssertionError
except RuntimeError as error:
    assert "takes ['.u32', '.u64', '.u64'], not 3 64-bit integers" in str(error)
compiler.ptx = None  # from now on all is known
assert modules.code("fill_numbers", (9, 0))[:4] == (b"\\x7fELF" if has_ptxas else b"//\\n/")
assert b".entry " + entry + b"(" in modules.code("fill_numbers", (99, 0))
"""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["FUSION_CACHE_DIR"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
