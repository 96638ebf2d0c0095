"""Trainings that are killed again and again, and go on as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.modelzoo.test_sharded import check_replicas
from tests.modelzoo.test_training import (
    ROOT,
    SERVERS,
    WORKERS,
    check_going_on,
    check_killed,
    check_trained_by_processes,
    order_of_processes,
)


@pytest.mark.parametrize("style", ["keras", "graph"])
def test_killed_three_times_it_ends_with_the_same_loss(tmp_path: Path, style: str) -> None:
    check_killed(tmp_path, style, 400, [20, 120, 240], ["modelzoo.dlrm"])


@pytest.mark.parametrize("style", ["keras", "graph"])
def test_stopped_three_times_it_ends_as_one_that_was_not(tmp_path: Path, style: str) -> None:
    check_going_on(tmp_path, style, [4, 7, 11])


def marked(mark: str) -> list[str]:
    """The processes that have a variable in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def test_processes_train_as_one_without_shards(tmp_path: Path) -> None:
    check_replicas(tmp_path, ["multiworker", "mirrored", "none"], sharded=False)


@pytest.mark.parametrize(("strategy", "processes"), [(SERVERS, 5), (WORKERS, 2)])
def test_killed_processes_end_with_the_first_and_go_on(
    tmp_path: Path, strategy: Sequence[str], processes: int
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"

    def step() -> int:
        file = folder / "state.json"
        return json.loads(file.read_text())["step"] if file.is_file() else 0

    mark = f"MARK={folder}"
    order = ["env", mark, *order_of_processes(folder, 100_000, strategy)]
    with (
        log.open("wb") as told,
        subprocess.Popen(order, cwd=ROOT, stdout=told, stderr=told) as process,
    ):
        while process.poll() is None and step() < 20:
            time.sleep(0.05)
        assert len(marked(mark)) == processes
        process.kill()
    reached = step()
    assert reached >= 20, log.read_text()[-2000:]
    end = time.monotonic() + 60
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, "the others end with the first"
    check_trained_by_processes(folder, reached + 20, strategy)
