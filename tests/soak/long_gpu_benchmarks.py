"""The GPU workloads in Numba's CUDA simulator: many, and wrong results; every kernel by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.test_gpu import measured, run


@pytest.mark.parametrize("workload", ["bag, 10", "multihot26", "recflex"])
def test_many_workloads_are_checked_without_tensorflow(tmp_path: Path, workload: str) -> None:
    (_, *rows, _), _ = measured(tmp_path / "rows", workload)
    assert len(rows) == {"bag, 10": 5, "multihot26": 2, "recflex": 1}[workload]
    for row in rows:
        assert 0 <= float(row["values"]["error"]) < 1e-5


def test_a_wrong_kernel_is_found(tmp_path: Path) -> None:
    broken = "from benchmarks.gpu import prepared; prepared._TOLERANCE = -1.0"
    (_, row, _), told = measured(tmp_path / "rows", "bag, 1 ids, dim 8", broken)
    assert "bag, 1 ids, dim 8: off by" in row["failure"]
    assert "--seed" in row["failure"]
    assert "RuntimeError" in told


def test_every_kernel_is_launched_and_right() -> None:
    done = run("tests.gpu_kernels", "--elements", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernels were launched, on 50 elements a step" in done.stdout


def test_a_wrong_step_is_found() -> None:
    broken = "from tests.gpu_kernels import references; references.TOLERANCES['float32'] = -1.0"
    names = "last row", "gradient of columns, float32"
    done = run("tests.gpu_kernels", *names, "--elements", "50", broken=broken)
    assert done.returncode == 1
    assert "gradient of columns, float32: gradient, float32: off by" in done.stdout
