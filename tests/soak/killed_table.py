"""A training with an embedding variable that saves after every step: `killed_table.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from fusion import EmbeddingVariable

STEPS = 150


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    variable = EmbeddingVariable("table", 16, admission=2, capacity=1_000_000)
    step = tf.Variable(0, dtype=tf.int64)
    losses = tf.Variable(tf.zeros([STEPS]))
    checkpoint = tf.train.Checkpoint(table=variable, step=step, losses=losses)
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=5)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    while int(step) < STEPS:
        rng = np.random.default_rng(int(step))
        keys, counts = np.unique(rng.zipf(1.3, 5000) % 2**40, return_counts=True)
        with tf.GradientTape() as tape:
            rows = variable.embedding_lookup(keys, counts.astype(np.int32))
            loss = tf.reduce_sum((rows - 1) ** 2)
        slices = tape.gradient(loss, variable.table)
        tf.raw_ops.ResourceScatterSub(
            resource=variable.table.handle, indices=slices.indices, updates=0.1 * slices.values
        )
        losses[int(step)].assign(loss)
        step.assign_add(1)
        manager.save()
    (folder / "losses.json").write_text(json.dumps(losses.numpy().tolist()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
