"""Trainings that are killed again and again, and go on as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.modelzoo.test_training import (
    ROOT,
    check_going_on,
    check_killed,
    check_trained_by_servers,
    order_of_servers,
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


def test_killed_workers_and_servers_end_with_their_chief_and_go_on(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"

    def step() -> int:
        file = folder / "state.json"
        return json.loads(file.read_text())["step"] if file.is_file() else 0

    mark = f"MARK={folder}"
    order = ["env", mark, *order_of_servers(folder, 100_000)]
    with (
        log.open("wb") as told,
        subprocess.Popen(order, cwd=ROOT, stdout=told, stderr=told) as process,
    ):
        while process.poll() is None and step() < 20:
            time.sleep(0.05)
        assert len(marked(mark)) == 5
        process.kill()
    reached = step()
    assert reached >= 20, log.read_text()[-2000:]
    end = time.monotonic() + 60
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, "workers and servers end with their chief"
    check_trained_by_servers(folder, reached + 20)
