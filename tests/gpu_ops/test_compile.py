"""Every kernel is compiled for every GPU that is supported, in a process with the real compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fusion.gpu_ops.compile import CAPABILITIES
from fusion.gpu_ops.kernels import KERNELS

PROGRAM = """
import json, sys
from dataclasses import asdict
from fusion.gpu_ops import compile as compiler
from fusion.gpu_ops.kernels import KERNELS

ptxas = compiler.assembler()
for name in sys.argv[1:]:
    kernel = KERNELS[name]
    for capability in compiler.CAPABILITIES:
        code, entry = compiler.ptx(kernel.make(), kernel.arguments, capability)
        found = {"name": name, "capability": capability, "contracted": "fma.rn" in code}
        if ptxas is not None:
            machine, resources = compiler.assemble(code, capability, ptxas)
            found |= asdict(resources) | {"is_elf": machine[:4] == b"\\x7fELF"}
        print(json.dumps(found), flush=True)
"""


def compiled(*names: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("part", [0, 1])
def test_kernels_fit_all_gpus(part: int) -> None:
    """In two parts, side by side: each process must warm up."""
    names = list(KERNELS)[part::2]
    found = compiled(*names)
    wanted = [(name, list(capability)) for name in names for capability in CAPABILITIES]
    assert [(one["name"], one["capability"]) for one in found] == wanted
    for one in found:
        # A product that is fused with a sum is rounded once where the CPU rounds twice.
        assert not one["contracted"], one
        if "registers" not in one:
            continue  # ptxas is not installed
        assert one["is_elf"], one
        assert one["spills"] == 0, one
        assert one["registers"] <= KERNELS[one["name"]].registers, one
        assert one["shared"] <= 48 << 10, one


def test_kernels_are_loaded_by_names_of_their_own() -> None:
    program = """
from fusion.gpu_ops import modules
code = modules.compile_kernel("fill_numbers", (9, 0))
assert modules.entry_of("fill_numbers").encode() in code, code[:500]
assert code[:4] == b"\x7fELF" or b".entry fusion_fill_numbers(" in code
"""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
