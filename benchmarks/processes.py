"""Processes of their own, with less than the machine has, by the control groups of Linux."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

_ROOT = Path("/sys/fs/cgroup")

#: Microseconds of the period of a quota.
_PERIOD = 100_000

#: What lets a process begin in a group, as `preexec_fn` of `subprocess`; None where there is no
#: right to make one.
Begin = Callable[[], object] | None


@contextmanager
def process(enter: Begin = None, **environment: str | None) -> Iterator[Callable[..., Any]]:
    """Yields what calls functions of modules, given with their arguments, in one new process.

    Args:
        enter: lets the process begin in a group.
        environment: variables; None takes one away.
    """
    own = enter, environment
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, own) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def _begin(enter: Begin, environment: Mapping[str, str | None]) -> None:
    if enter is not None:
        enter()
    for name, value in environment.items():
        os.environ.pop(name, None)
        os.environ.update({} if value is None else {name: value})


def alone(function: Callable[..., Any], *arguments: Any, enter: Begin = None) -> Any:
    """What a function of a module returns in a new process."""
    with process(enter) as call:
        return call(function, *arguments)


def limited(size: int) -> AbstractContextManager[Begin]:
    """Yields what lets a process begin with so many bytes of memory."""
    return _group(
        {
            _ROOT / "memory": {"memory.limit_in_bytes": str(size)},
            _ROOT: {"memory.max": str(size)},
        }
    )


def limited_processors(count: float) -> AbstractContextManager[Begin]:
    """Yields what lets a process begin that may keep so many processors busy."""
    quota = str(round(count * _PERIOD))
    return _group(
        {
            _ROOT / "cpu": {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota},
            _ROOT: {"cpu.max": f"{quota} {_PERIOD}"},
        }
    )


@contextmanager
def _group(versions: Mapping[Path, Mapping[str, str]]) -> Iterator[Begin]:
    """Yields what lets a process begin in a group of the first version that there is.

    Args:
        versions: the folder of all groups, and what is written into the files of the group.
    """
    for root, files in versions.items():
        group = root / f"fusion-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                for name, text in files.items():
                    (group / name).write_text(text)
            except OSError:
                continue
            yield partial((group / "cgroup.procs").write_text, "0")  # the one that writes
        finally:
            group.rmdir()
        return
    yield None
