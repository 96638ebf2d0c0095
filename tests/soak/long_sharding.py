"""Sharded tables as in `tests.distribute`: more of them, in more processes, by all optimizers.

20 tables; or three, of which two are embedding variables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.distributed import sharded as example
from examples.distributed.model import BATCH, COLUMNS, DIM, MOST_IDS, ROWS
from fusion.distribute import Table, row_sharded_messages, row_sharded_traffic
from tests.distribute import keyed_training, processes, training

STEPS, TABLES = 50, 20
OPTIMIZERS = [*training.OPTIMIZERS, *(f"keyed:{name}" for name in keyed_training.OPTIMIZERS)]
#: Devices and workers.
REPLICAS = {"workers 4": (1, 4), "devices 2": (2, 1), "workers 2": (1, 2), "one": (1, 1)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_and_checkpoints_of_any_number_of_replicas(optimizer: str, tmp_path: Path) -> None:
    """Each is restored from what the one before has saved; the first is run twice."""
    losses: dict[str, Any] = {}
    restored_from = "workers 4"
    for name, (devices, workers) in REPLICAS.items():
        arguments = [name, restored_from, str(devices), str(STEPS), str(TABLES), optimizer]
        printed = [
            [json.loads(line)["trained"][optimizer] for line in _run(tmp_path, arguments, workers)]
            for _ in range(1 if losses else 2)
        ]
        assert printed[0] == printed[-1]
        losses[name] = printed[0]
        restored_from = name
    for told in losses["workers 4"]:
        messages, sent, least = told["sent"]
        assert messages == (6 + (4 if "keyed" in optimizer else 6)) * 3 * STEPS
        assert least <= sent <= least * 33 / 32
    (one,) = losses["one"]
    for some in losses.values():
        for told in some:
            np.testing.assert_allclose(told["losses"], one["losses"], rtol=1e-6)
            np.testing.assert_allclose(told["restored"], one["losses"][STEPS:], rtol=1e-6)


@pytest.mark.parametrize("kind", ["rows", "keys", "slots"])
def test_the_example_gives_the_same_losses(kind: str) -> None:
    losses = [
        example.run(strategy, replicas, 5, 3, kind)[0]["losses"]
        for strategy, replicas in (("mirrored", 1), ("mirrored", 2), ("multi_worker", 2))
    ]
    for some in losses:
        np.testing.assert_allclose(some, losses[0], rtol=1e-6)


@pytest.mark.parametrize("workers", [4, 8])
def test_a_step_sends_what_the_model_says(workers: int) -> None:
    """The table of docs/distribute.md, whose processes differ from its mean by up to 1.1 %."""
    arguments = ["multi_worker", "--process", f"--steps={STEPS}"]
    printed = processes.run("examples.distributed.sharded", arguments, workers, seconds=900)
    table = Table("one", ROWS - 1, DIM, hotness=MOST_IDS * 0.6)
    model = row_sharded_traffic(table, workers, BATCH)
    for told in map(json.loads, printed):
        assert told["messages_in_a_step"] == row_sharded_messages(workers)
        # Ids and rows are padded, by up to 1/32, and 12 bytes tell of a wrong id.
        assert told["sent_in_a_step"] == pytest.approx(COLUMNS * model.total, rel=0.03)


def _run(folder: Path, arguments: list[str], workers: int) -> list[str]:
    return processes.run(
        "tests.distribute.program", [str(folder), *arguments], workers, seconds=900
    )
