"""How much memory the process may use, by files as Linux has them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import limited
from fusion.runtime.limits import memory
from fusion.runtime.native.jit import callable_from_python
from tests.runtime.group_files import write_groups

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

_LIMIT = callable_from_python(memory.memory_limit)
_RESIDENT = callable_from_python(memory.resident_bytes)
_FITS = callable_from_python(memory.fits_into_memory)

#: What is mounted on a machine with both versions, and has no memory controller then.
NEW, OLD = "sys/fs/cgroup", "sys/fs/cgroup/memory"

V1 = "9:name=systemd:/\n4:memory:/shop/{}\n3:cpuset:/other\n0::/\n"
V2 = "0::/shop/{}\n"


def limit(root: str | Path) -> int:
    text = ctypes.create_string_buffer(os.fsencode(root))
    return _LIMIT(ctypes.addressof(text))


def resident(root: str | Path) -> int:
    text = ctypes.create_string_buffer(os.fsencode(root))
    return _RESIDENT(ctypes.addressof(text))


def limit_of(root: Path, groups: str, **limits: str) -> int:
    """The limit where the files have this content, `limits` by the paths of the groups."""
    write_groups(root, groups, limits)
    return limit(root)


@pytest.mark.parametrize(
    "limits", [("700", "900", "max"), ("900", "700", "max"), ("max", "max", "700")]
)
@pytest.mark.parametrize(
    ("groups", "mount", "name"),
    [(V2, NEW, "memory.max"), (V1, OLD, "memory.limit_in_bytes")],
)
def test_the_least_of_all_groups_counts(
    tmp_path: Path, groups: str, mount: str, name: str, limits: tuple[str, str, str]
) -> None:
    paths = [f"{mount}/{group}{name}" for group in ("shop/pod/", "shop/", "")]
    files = {path: f"{text}\n" for path, text in zip(paths, limits, strict=True)}
    others = {f"{mount}/shop/other/{name}": "5\n", f"{mount}/other/{name}": "5\n"}
    assert limit_of(tmp_path, groups.format("pod"), **files, **others) == 700


@pytest.mark.parametrize(
    ("groups", "mount", "name"),
    [(V2, NEW, "memory.max"), (V1, OLD, "memory.limit_in_bytes")],
)
def test_a_container_sees_its_own_group_as_the_root(
    tmp_path: Path, groups: str, mount: str, name: str
) -> None:
    assert limit_of(tmp_path, groups.format("a" * 500), **{f"{mount}/{name}": "700\n"}) == 700


@pytest.mark.parametrize(
    "groups", ["", "0::/\n", "0::/", "1:memory:/x", "nonsense", ":", "::", "\n\n"]
)
@pytest.mark.parametrize("text", ["max\n", "", "9223372036854771712\n"])
def test_without_a_limit_it_is_the_machine_s(tmp_path: Path, groups: str, text: str) -> None:
    files = {f"{NEW}/memory.max": text, f"{OLD}/memory.limit_in_bytes": text}
    assert limit_of(tmp_path, groups, **files) == MACHINE


def test_other_controllers_have_none(tmp_path: Path) -> None:
    files = {f"{OLD}/memory.limit_in_bytes": "700", f"{NEW}/memory.max": "700"}
    assert limit_of(tmp_path, "1:cpu,cpuacct:/\n2:memoryless:/\n", **files) == MACHINE


def test_many_groups(tmp_path: Path) -> None:
    """More than a page of them."""
    groups = "".join(f"{k}:c{k}:/{'x' * 200}\n" for k in range(60))
    assert limit_of(tmp_path, f"{groups}0::/shop", **{f"{NEW}/shop/memory.max": "700"}) == 700


def test_nothing_is_known(tmp_path: Path) -> None:
    assert limit(tmp_path) == MACHINE
    assert resident(tmp_path) == 0


def test_resident_memory(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/statm").write_text("9000 70 30 1 0 200 0\n")
    assert resident(tmp_path) == 70 * os.sysconf("SC_PAGE_SIZE")
    assert resident("") > 1 << 20


def test_a_process_in_a_group() -> None:
    """Where there is the right to make one; else in that of the tests."""
    child = "from tests.runtime.test_memory_limit import limit; print(limit(''))"
    size = 1 << 29
    with limited(size) as enter:
        output = subprocess.check_output([sys.executable, "-c", child], preexec_fn=enter)
    assert int(output) == (size if enter is not None else limit(""))


def test_what_fits() -> None:
    assert _FITS(0)
    assert not _FITS(MACHINE)
