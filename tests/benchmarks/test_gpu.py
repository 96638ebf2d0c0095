"""`python -m benchmarks gpu` in Numba's CUDA simulator, where there is no TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import memory, references, steps, tensorflow_side
from fusion.gpu_ops.kernels.registry import KERNELS

ROOT = Path(__file__).parents[2]

#: Runs the command as if TensorFlow were not installed.
PROGRAM = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
"""


#: Before parts of the command are imported, to break them.
PREPARED = "from benchmarks import gpu; gpu.prepare_package()"


def run(*arguments: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    before = f"{PREPARED}\n{broken}\n" if broken else ""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("runpy.run", f"{before}runpy.run"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )


def test_kernels_are_checked_without_tensorflow(tmp_path: Path) -> None:
    """One workload; many, and wrong results, are in tests/soak/long_gpu_benchmarks.py."""
    workload = "bag, 10 ids, dim 8"
    done = run("gpu", "--scale", "0.00005", "--workload", workload, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads((tmp_path / "gpu.json").read_text())
    assert numbers["device"] == "Numba's CUDA simulator"
    assert numbers["workloads"]
    for row in numbers["workloads"]:
        assert 0 <= row["error"] < (1e-2 if "float16" in row["name"] else 1e-5)
    assert (tmp_path / "gpu.md").read_text() == done.stdout
    assert f"| {workload} |" in done.stdout


def test_a_kernel_that_nobody_launched_is_told() -> None:
    assert steps.not_launched(KERNELS) == []
    some = {"scatter_float16", "join_parts"}
    assert steps.not_launched(set(KERNELS) - some) == ["join_parts", "scatter_float16"]


def test_one_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    broken = (
        "from benchmarks.gpu import steps; every = dict(steps._steps()); "
        "steps._steps = lambda: [('one', lambda *_: 1 / 0), *every.items()]"
    )
    arguments = "--scale", "0.00005", "--out", str(tmp_path), "--workload", "bag, 1 ids, dim 8"
    done = run("gpu", *arguments, "--step", "one", "last row", broken=broken)
    assert done.returncode == 1
    assert "one, 50 elements: division by zero (--seed " in done.stdout
    assert "ZeroDivisionError" in done.stderr
    numbers = json.loads((tmp_path / "gpu.json").read_text())
    names = [row["name"] for row in numbers["workloads"]]
    assert names == ["last row, 50 elements", "bag, 1 ids, dim 8"]
    assert numbers["failures"] == ["one, 50 elements: division by zero"]
    assert numbers["kernels"] == ["combine_float32", "find_last_row"]


def test_launches_take_pythons_integers() -> None:
    """Steps compute with NumPy's, which numba-cuda refuses as the size of a grid."""
    found = list[Any]()

    class Kernel:
        def __getitem__(self, size: tuple[Any, Any]) -> Any:
            found.extend(size)
            return found.append

    launcher = memory.Memory.__new__(memory.Memory)
    launcher.kernels = {"sum_tiles": Kernel()}
    blocks: Any = np.int64(3)
    launcher.launch("sum_tiles", blocks, 128, 7)
    assert found == [3, 128, 7]
    assert [type(number) for number in found] == [int, int, int]


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
    columns = tuple(memory.Column(40, dim, (0, 5), combiner=dim % 2) for dim in (4, 7, 8))
    workload = memory.Workload("some", 30, columns)
    assert tensorflow_side.compared(workload, "", 1, 2) == {}
    found = tensorflow_side.compared(workload, "/CPU:0", 1, 2)
    assert found["stock_ms"] > 0
    assert found["fused_ms"] > 0
    assert found["same_bits"]
    grouped = tensorflow_side._grouped
    monkeypatch.setattr(tensorflow_side, "_grouped", lambda *given: grouped(*given) + 1e-4)
    with pytest.raises(RuntimeError, match="some: not stock TensorFlow"):
        tensorflow_side.compared(workload, "/CPU:0", 1, 2)
