"""How many processors the process may keep busy, by files as Linux has them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import limited_processors
from fusion.runtime.limits import processors
from fusion.runtime.native.jit import callable_from_python
from tests.runtime.group_files import write_groups

_OF_GROUPS = callable_from_python(processors._limit_of_groups)
_LIMIT = callable_from_python(processors.processor_limit)

NO_LIMIT = 2**63 - 1
NEW, OLD = "sys/fs/cgroup", "sys/fs/cgroup/cpu"
V2, V1 = "0::/shop/pod\n", "4:memory:/\n1:{}:/shop/pod\n0::/\n"


def limits(root: Path, groups: str, files: dict[str, str]) -> tuple[int, int]:
    """The quota of the groups, and what the process may use after all."""
    write_groups(root, groups, files)
    text = ctypes.create_string_buffer(os.fsencode(root))
    return _OF_GROUPS(ctypes.addressof(text)), _LIMIT(ctypes.addressof(text))


def of_old(quota: str, period: str = "100000", group: str = "/shop/pod") -> dict[str, str]:
    return {
        f"{OLD}{group}/cpu.cfs_quota_us": f"{quota}\n",
        f"{OLD}{group}/cpu.cfs_period_us": f"{period}\n",
    }


def of_new(quota: str, period: str = "100000", group: str = "/shop/pod") -> dict[str, str]:
    return {f"{NEW}{group}/cpu.max": f"{quota} {period}\n"}


@pytest.mark.parametrize(
    ("quota", "period", "count"),
    [
        ("100000", "100000", 1),
        ("200000", "100000", 2),
        ("50000", "100000", 1),
        ("150000", "100000", 2),
        ("1000", "1000", 1),
        ("12800000", "100000", 128),
        ("0", "100000", 1),
    ],
)
def test_a_part_of_a_processor_counts_whole(
    tmp_path: Path, quota: str, period: str, count: int
) -> None:
    here = len(os.sched_getaffinity(0))
    for name, groups, files in (
        ("new", V2, of_new(quota, period)),
        ("old", V1.format("cpu"), of_old(quota, period)),
    ):
        assert limits(tmp_path / name, groups, files) == (count, min(count, here))


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_a_folder_has_several_controllers(tmp_path: Path, controllers: str) -> None:
    assert limits(tmp_path, V1.format(controllers), of_old("100000"))[0] == 1


@pytest.mark.parametrize("controllers", ["cpuacct", "cpuset", "cpuset,cpuacct", "pids", ""])
def test_other_controllers_have_none(tmp_path: Path, controllers: str) -> None:
    assert limits(tmp_path, V1.format(controllers), of_old("100000"))[0] == NO_LIMIT


def test_the_least_of_all_groups_counts(tmp_path: Path) -> None:
    new = of_new("max") | of_new("300000", group="/shop") | of_new("200000", group="")
    assert limits(tmp_path / "new", V2, new)[0] == 2
    old = of_old("-1") | of_old("200000", group="/shop") | of_old("300000", group="")
    assert limits(tmp_path / "old", V1.format("cpu"), old)[0] == 2


@pytest.mark.parametrize(
    "files",
    [
        {},
        of_new("max"),
        of_new("", ""),
        of_new("100000", ""),
        of_new("100000", "0"),
        of_new("x", "y"),
        of_old("-1"),
        of_old("100000", "0"),
        of_old("100000", ""),
    ],
)
def test_without_a_quota_it_is_where_it_may_run(tmp_path: Path, files: dict[str, str]) -> None:
    here = len(os.sched_getaffinity(0))
    assert limits(tmp_path, V1.format("cpu") + V2, files) == (NO_LIMIT, here)


def here() -> int:
    """What this process may use."""
    text = ctypes.create_string_buffer(b"")
    return int(_LIMIT(ctypes.addressof(text)))


def test_a_process_in_a_group() -> None:
    """Where there is the right to make one; else in that of the tests."""
    child = "from tests.runtime.test_processor_limit import here; print(here())"
    with limited_processors(0.5) as enter:
        output = subprocess.check_output([sys.executable, "-c", child], preexec_fn=enter)
    assert int(output) == (1 if enter is not None else here())
