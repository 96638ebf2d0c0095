"""By what code for GPUs is kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from fusion.gpu_ops.host import compile as compiler
from fusion.gpu_ops.host import modules
from fusion.runtime.native import objects

WHEELS = {"numba-cuda": "0.30.4", "nvidia-cuda-nvcc-cu12": "12.9.86"}

Names = Callable[[dict[str, str]], list[str]]


@pytest.fixture
def names_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Names]:
    """Returns the names of a kernel's PTX and machine code where some wheels are installed."""
    for variable in compiler._HOMES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(compiler, "_SYSTEM", str(tmp_path / "none"))
    monkeypatch.setattr(compiler, "assembler", lambda: "ptxas")

    def names(wheels: dict[str, str]) -> list[str]:
        def version(package: str) -> str:
            if package not in wheels:
                raise PackageNotFoundError(package)
            return wheels[package]

        asked: list[str] = []

        def get(name: str, *_: object) -> bytes:
            asked.append(name)
            return b""

        monkeypatch.setattr(compiler, "version", version)
        monkeypatch.setattr(objects, "get", get)
        compiler.tools.cache_clear()
        modules.text("fill_numbers")
        modules.code("fill_numbers", (9, 0))
        return asked

    yield names
    monkeypatch.undo()
    compiler.tools.cache_clear()


@pytest.mark.parametrize(
    "other",
    [
        {"numba-cuda": "0.30.5"},
        {"nvidia-cuda-nvcc-cu12": "12.8.93"},
        {"nvidia-cuda-nvcc": "13.0.48"},
        {"nvidia-nvvm": "13.0.48"},
    ],
)
def test_other_tools_have_other_files(names_with: Names, other: dict[str, str]) -> None:
    first = names_with(WHEELS)
    assert len({*first}) == 2
    assert names_with(WHEELS) == first
    assert {*names_with(WHEELS | other)}.isdisjoint(first)


def test_other_wheels_do_not_matter(names_with: Names) -> None:
    assert names_with(WHEELS | {"nvidia-cublas-cu12": "12.9"}) == names_with(WHEELS)


def test_a_toolkit_of_the_system_counts_where_there_is_no_wheel(
    names_with: Names, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = {"numba-cuda": WHEELS["numba-cuda"]}
    seen, with_wheel = [names_with(alone)], names_with(WHEELS)
    home = tmp_path / "cuda"
    monkeypatch.setenv("CUDA_HOME", str(home))
    for number in ("12.8", "12.9"):  # what a link leads to
        (tmp_path / f"cuda-{number}").mkdir()
        home.unlink(missing_ok=True)
        home.symlink_to(tmp_path / f"cuda-{number}")
        seen.append(names_with(alone))
    (home / "version.json").write_text('{"cuda": {"version": "12.9.1"}}')
    seen.append(names_with(alone))
    assert len({*map(tuple, seen)}) == 4
    assert names_with(WHEELS) == with_wheel
