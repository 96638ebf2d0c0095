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
from examples.distributed.model import BATCH, COLUMNS, DIM, MAX_IDS, ROWS
from fusion.distribute import Table, row_sharded_messages, row_sharded_traffic
from tests.distribute import keyed_training, processes, training

#: Of all optimizers this takes most of an hour on two processors.
STEPS, TABLES = 20, 6
OPTIMIZERS = [*training.OPTIMIZERS, *(f"keyed:{name}" for name in keyed_training.OPTIMIZERS)]
#: Devices and workers.
REPLICAS = {"workers 4": (1, 4), "devices 2": (2, 1), "workers 2": (1, 2), "one": (1, 1)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[dict[str, Any]]]]:
    """Of each number of replicas what each prints, by the optimizers, of the first one twice.

    Each is restored from what the one before has saved.
    """
    folder, restored_from = tmp_path_factory.mktemp("trained"), "workers 4"
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for name, (devices, workers) in REPLICAS.items():
        numbers = (str(number) for number in (devices, STEPS, TABLES))
        arguments = [name, restored_from, *numbers, *OPTIMIZERS]
        found[name] = [
            [json.loads(line)["trained"] for line in _run(folder, arguments, workers)]
            for _ in range(1 if found else 2)
        ]
        restored_from = name
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_and_checkpoints_of_any_number_of_replicas(optimizer: str, trained: Any) -> None:
    losses = {}
    for name, runs in trained.items():
        printed = [[told[optimizer] for told in run] for run in runs]
        assert printed[0] == printed[-1]
        losses[name] = printed[0]
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
    table = Table("one", ROWS - 1, DIM, hotness=MAX_IDS * 0.6)
    model = row_sharded_traffic(table, workers, BATCH)
    for told in map(json.loads, printed):
        assert told["messages_in_a_step"] == row_sharded_messages(workers)
        # Ids and rows are padded, by up to 1/32, and 12 bytes tell of a wrong id.
        assert told["sent_in_a_step"] == pytest.approx(COLUMNS * model.total, rel=0.03)


def _run(folder: Path, arguments: list[str], workers: int) -> list[str]:
    return processes.run(
        "tests.distribute.program", [str(folder), *arguments], workers, seconds=1800
    )
