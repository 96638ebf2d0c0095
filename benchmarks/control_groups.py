"""Processes with less memory than the machine has, by the control groups (cgroups) of Linux."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

#: The folder of all groups and the name of the limit, in the older version and in the newer one.
_VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


@contextmanager
def limited(size: int) -> Iterator[Callable[[], object] | None]:
    """Yields what lets a process begin with so much memory, as `preexec_fn` of `subprocess`.

    None where there is no right to make a group.
    """
    for root, name in _VERSIONS:
        group = root / f"fusion-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / name).write_text(str(size))
            except OSError:
                continue
            yield partial((group / "cgroup.procs").write_text, "0")  # the one that writes
        finally:
            group.rmdir()
        return
    yield None
