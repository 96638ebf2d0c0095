"""Measures the memory of a process that has a sharded table; a program, which prints it.

    python -m tests.distribute.memory FOLDER DEVICES

A process of its own: with `TF_CONFIG` a worker, else as many devices. It prints the largest memory
of each stage, in MiB beyond what was there before.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import tf_keras

import fusion
from fusion.keras.layers import SlotEmbedding
from tests.distribute.training import strategy_of

DIMENSION, IDS = 64, 1000
#: Of the table that is measured: 128 MiB.
ROWS = 1 << 19
#: Of one before it, with which TensorFlow makes what it needs for any.
FIRST_ROWS = 1 << 10


class Stages:
    """What is done with a table, in this order; each replica has its shard in all of them.

    Args:
      strategy: of the table.
      rows: of the table.
      path: the beginning of the checkpoints' paths; each process has its own.
    """

    def __init__(self, strategy: Any, rows: int, path: str) -> None:
        self._strategy, self._rows, self._path = strategy, rows, path

    def make(self) -> None:
        """Makes the table, of a layer."""
        with self._strategy.scope():
            self._layer = SlotEmbedding(self._rows, DIMENSION, mode="distributed")
            self._layer.build()
        self._table = self._layer.table
        self._shards = [*self._table.shards.values()]

    def train(self) -> None:
        """Trains it without optimizer variables."""
        with self._strategy.scope():
            self._train_by(keras.optimizers.SGD(0.1))

    def train_with_slots(self) -> None:
        """Trains it by an optimizer whose variables are as large."""
        with self._strategy.scope():
            self._optimizer = tf_keras.optimizers.Adagrad(0.1)
            self._train_by(self._optimizer)

    def _train_by(self, optimizer: Any) -> None:
        def in_replica() -> None:
            ids = tf.random.uniform([IDS, 1, 1], 0, self._rows, tf.int32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(fusion.slots_lookup(self._table, ids, "sum") ** 2)
            gradients = tape.gradient(loss, self._shards)
            optimizer.apply_gradients(zip(gradients, self._shards, strict=True))

        optimizer.build(self._shards)
        step = tf.function(lambda: self._strategy.run(in_replica))
        for _ in range(3):
            step()

    def save(self) -> None:
        """Saves the table and the optimizer's variables."""
        rank = getattr(self._strategy.extended, "_id_in_cluster", 0)
        self._checkpoint = tf.train.Checkpoint(table=self._table, optimizer=self._optimizer)
        self._checkpoint.write(f"{self._path}-{rank}")

    def restore(self) -> None:
        """Restores what the first process has saved."""
        with self._strategy.scope():
            self._train_by(keras.optimizers.SGD(0.1))  # which waits for all
        self._checkpoint.read(f"{self._path}-0").assert_existing_objects_matched()


def largest(stages: Stages) -> dict[str, float]:
    """The largest memory of each stage."""
    before, found = _mebibytes("VmRSS"), {}
    for name, stage in vars(Stages).items():
        if not name.startswith("_"):
            with contextlib.suppress(OSError):  # else it is the largest so far
                Path("/proc/self/clear_refs").write_text("5")
            stage(stages)
            gc.collect()
            found[name] = _mebibytes("VmHWM") - before
    return found


def _mebibytes(field: str) -> float:
    """A field of this process's status, see proc(5)."""
    (size,) = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(size) / 1024


def main() -> None:
    folder, devices = sys.argv[1:]
    strategy = strategy_of(int(devices))
    largest(Stages(strategy, FIRST_ROWS, f"{folder}/first"))
    print(json.dumps(largest(Stages(strategy, ROWS, f"{folder}/second"))), flush=True)


if __name__ == "__main__":
    main()
