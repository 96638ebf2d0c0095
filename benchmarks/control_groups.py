"""Processes with less memory or processor time than there is, by the control groups of Linux."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

#: Of each limit, the folder of all groups and the name of its file, in version 1 and in version 2.
_MEMORY = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
_PROCESSORS = (
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us"),
    (Path("/sys/fs/cgroup"), "cpu.max"),
)
_PERIOD = 100_000  # microseconds, Linux's own

_Limited = AbstractContextManager[Callable[[], object] | None]


def limited(size: int) -> _Limited:
    """Yields what lets a process begin with so much memory, as `preexec_fn` of `subprocess`.

    None where there is no right to make a group.
    """
    return _group(_MEMORY, str(size))


def limited_processors(count: float) -> _Limited:
    """Yields what lets a process begin with the time of so many processors, see `limited`."""
    return _group(_PROCESSORS, str(round(count * _PERIOD)))


@contextmanager
def _group(
    versions: tuple[tuple[Path, str], ...], value: str
) -> Iterator[Callable[[], object] | None]:
    for root, name in versions:
        group = root / f"fusion-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / name).write_text(value)
            except OSError:
                continue
            yield partial((group / "cgroup.procs").write_text, "0")  # the one that writes
        finally:
            group.rmdir()
        return
    yield None
