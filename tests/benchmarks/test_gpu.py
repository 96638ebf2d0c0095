"""GPU kernels in Numba's CUDA simulator, where there is no TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import grouped
from benchmarks.case import middle
from benchmarks.gpu import memory, tensorflow_side
from benchmarks.lookups.workloads import Column
from fusion.gpu_ops.kernels.registry import KERNELS
from tests.gpu_kernels import references, steps

ROOT = Path(__file__).parents[2]

#: Runs the command as if TensorFlow were not installed.
PROGRAM = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
"""


def run(name: str, *arguments: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a package in the simulator, after a program that breaks a part of it."""
    program = f"MODULE = {name!r}\n" + PROGRAM.replace("runpy.run", f"{broken}\nrunpy.run")
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )


def measured(path: Path, workload: str, broken: str = "") -> tuple[list[Any], str]:
    """The rows of workloads, measured without TensorFlow, and what was printed of errors."""
    part = {"workload": workload, "scale": 0.00005, "repeats": 1, "seed": 0}
    done = run("benchmarks", "worker", "gpu", json.dumps(part), str(path), broken=broken)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return found, done.stderr


def test_workloads_are_checked_without_tensorflow(tmp_path: Path) -> None:
    """One of them; many, and wrong results, are in tests/soak/long_gpu_benchmarks.py."""
    (device, row, facts), _ = measured(tmp_path / "rows", "bag, 10 ids, dim 8")
    assert device["key"] == {"device": "Numba's CUDA simulator"}
    assert row["key"] == {"workload": "bag, 10 ids, dim 8"}
    assert 0 <= float(row["values"]["error"]) < 1e-5
    assert "tensorflow" not in facts["machine"]


def test_a_kernel_that_is_not_launched_is_told() -> None:
    assert steps.not_launched(KERNELS) == []
    some = {"scatter_float16", "key_ids"}
    assert steps.not_launched(set(KERNELS) - some) == ["key_ids", "scatter_float16"]


def test_a_step_that_fails_does_not_end_the_others() -> None:
    broken = (
        "from tests.gpu_kernels import steps; every = dict(steps._steps()); "
        "steps._steps = lambda: [('one', lambda *_: 1 / 0), *every.items()]"
    )
    done = run("tests.gpu_kernels", "one", "last row", "--elements", "50", broken=broken)
    assert done.returncode == 1
    assert "one: division by zero (--seed " in done.stdout
    assert "ZeroDivisionError" in done.stderr
    assert "last row: 0.0e+00\n1 kernels were launched, on 50 elements a step" in done.stdout


def test_launches_take_pythons_integers() -> None:
    """Steps compute with NumPy's, which numba-cuda refuses as the size of a grid."""
    found = list[Any]()

    class Kernel:
        def __getitem__(self, size: tuple[Any, Any]) -> Any:
            found.extend(size)
            return lambda *arguments: found.extend(arguments)

    launcher = memory.Memory.__new__(memory.Memory)
    launcher.kernels = {"sum_tiles": Kernel()}
    blocks: Any = np.int64(3)
    launcher.launch("sum_tiles", blocks, 128, 7, blocks + 5, 9)
    assert found == [3, 128, 7, 8, 9]
    assert {type(number) for number in found} == {int}


def test_numbers_that_are_off_or_not_written_are_told() -> None:
    wanted, size = np.ones((3, 2)), np.full((3, 2), 4.0)
    off = references.close("sums", "float32", wanted + 3e-5, wanted, size)
    assert off == pytest.approx(7.5e-6)
    for wrong, stored in (
        (5e-5, "float32"),
        (np.nan, "float32"),
        (1e-11, "float64"),
        (5e-3, "float16"),
    ):
        with pytest.raises(RuntimeError, match=f"sums, {stored}: off by"):
            references.close("sums", stored, wanted + wrong, wanted, size)
    with pytest.raises(RuntimeError, match="order: wrong"):
        references.same("order", np.arange(3), np.array([0, 2, 1]))


def test_workloads_in_tensorflow_have_stocks_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU here; without a GPU there is nothing to measure."""
    assert tensorflow_side.gpu() == ""
    columns = tuple(
        Column(40, dim, ids=(0, 5), combiner=("sum", "mean")[dim % 2]) for dim in (4, 7, 8)
    )
    workload = memory.Workload("some", 30, columns)
    assert tensorflow_side.compared(workload, "", 1, 2) == {}
    found = tensorflow_side.compared(workload, "/CPU:0", 1, 2)
    assert middle(found[tensorflow_side.STOCK]) > 0
    assert middle(found[tensorflow_side.FUSED]) > 0
    assert found["bits of the CPU's"] == "yes"
    real = grouped.grouped
    monkeypatch.setattr(grouped, "grouped", lambda *given, **own: real(*given, **own) + 1e-4)
    with pytest.raises(RuntimeError, match="some: not stock TensorFlow"):
        tensorflow_side.compared(workload, "/CPU:0", 1, 2)
