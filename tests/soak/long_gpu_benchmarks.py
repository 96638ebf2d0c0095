"""`python -m benchmarks gpu` in Numba's CUDA simulator: many workloads, and wrong results."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.test_gpu import run


def test_many_kernels_are_checked_without_tensorflow(tmp_path: Path) -> None:
    done = run(
        "gpu",
        "--scale",
        "0.00005",
        "--workload",
        "bag, 10",
        "multihot26",
        "recflex",
        "--out",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads((tmp_path / "gpu.json").read_text())
    assert numbers["device"] == "Numba's CUDA simulator"
    assert len(numbers["workloads"]) == 36
    for row in numbers["workloads"]:
        assert 0 <= row["error"] < (1e-2 if "float16" in row["name"] else 1e-5)
    assert (tmp_path / "gpu.md").read_text() == done.stdout
    assert "| bag, 10 ids, dim 8 |" in done.stdout


def test_a_wrong_kernel_is_found() -> None:
    broken = "from benchmarks.gpu import prepared; prepared._TOLERANCE = -1.0"
    workload = "--workload", "bag, 1 ids, dim 8"
    done = run("gpu", "--scale", "0.00005", "--step", *workload, broken=broken)
    assert done.returncode == 1
    assert "bag, 1 ids, dim 8: off by" in done.stdout
    assert "--seed" in done.stdout


def test_a_wrong_step_is_found() -> None:
    broken = "from benchmarks.gpu import references; references.TOLERANCES['float32'] = -1.0"
    names = "last row", "gradient of columns, float32"
    done = run("gpu", "--scale", "0.00005", "--workload", "--step", *names, broken=broken)
    assert done.returncode == 1
    assert "gradient of columns, float32, 50 elements: gradient, float32: off by" in done.stdout
