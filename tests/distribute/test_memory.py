"""A replica needs memory for its shard and its batch, and for nothing else as large as a table."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.distribute import processes
from tests.distribute.memory import DIMENSION, ROWS

#: Of the table, and of blocks of rows, batches, and what TensorFlow makes besides, in MiB.
TABLE, REST = ROWS * DIMENSION * 4 / 2**20, 48


@pytest.mark.parametrize(("devices", "workers"), [(1, 2), (2, 1)])
def test_memory_of_a_process(devices, workers, tmp_path):
    shard = TABLE / workers
    assert shard > REST  # one more would be seen
    arguments = [str(tmp_path), str(devices)]
    # A fork shares memory with others.
    printed = processes.run("tests.distribute.memory", arguments, workers, start=subprocess.Popen)
    for number, largest in enumerate(map(json.loads, printed)):
        shards = 2 * shard  # those of rows and of an optimizer's variable
        most = {
            "make": shard,
            "train": shard,
            "train_with_slots": shards,
            # The process that writes puts both together.
            "save": shards + (2 * TABLE if number == 0 else 0),
            # TensorFlow reads both in each process, and keeps some of what it has read.
            "restore": shards + 2 * TABLE + 2 * shard + REST / 2,
        }
        assert largest.keys() == most.keys()
        for stage, size in most.items():
            assert largest[stage] <= size + REST, stage
        assert largest["train_with_slots"] >= shards  # or nothing was measured
