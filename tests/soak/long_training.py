"""Trainings of the zoo that are killed again and again, and go on as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[2]


def command(folder: Path, style: str) -> list[str]:
    words = [f"--style={style}", f"--run={folder}", "--cap=1000", "--samples=16384", "--epochs=6"]
    return [sys.executable, "-m", "modelzoo.train", "dlrm", *words, "--save-every=10"]


def saved(folder: Path, style: str) -> int:
    """The epochs, or of a graph the steps, of the last checkpoint."""
    if style == "keras":
        file = folder / "backup" / "training_metadata.json"
        return int(json.loads(file.read_text() or "{}").get("epoch", 0)) if file.exists() else 0
    latest = tf.train.latest_checkpoint(folder)
    return int(latest.rpartition("-")[2]) if latest else 0


def last_line(folder: Path, style: str) -> str:
    done = subprocess.run(
        command(folder, style), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("style", "stops"), [("keras", [1, 3, 4]), ("graph", [20, 70, 120])])
def test_killed_three_times_it_ends_with_the_same_loss(
    tmp_path: Path, style: str, stops: list[int]
) -> None:
    folder = tmp_path / "killed"
    for stop in stops:
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(command(folder, style), cwd=ROOT, stdout=log, stderr=log) as process,
        ):
            while process.poll() is None and saved(folder, style) < stop:
                time.sleep(0.05)
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            process.kill()
    assert last_line(folder, style) == last_line(tmp_path / "whole", style)
