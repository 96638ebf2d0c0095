"""Trains sharded tables from one checkpoint to the next; a program, which prints its losses.

    python -m tests.distribute.restoring OPTIMIZER FOLDER FROM TO [DEVICES]

Restores the checkpoint of step FROM, if that is not 0, and writes one of step TO.
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf

from tests.distribute.training import OPTIMIZERS, Model, strategy_of


def main() -> None:
    name, folder, begin, end, *devices = sys.argv[1:]
    strategy = strategy_of(int(devices[0]) if devices else 1)
    model = Model(strategy, OPTIMIZERS[name])
    checkpoint = tf.train.Checkpoint(
        tables=model.tables, dense=model.dense, optimizer=model.optimizer
    )
    if int(begin):
        # Trained rows and slots are not left as they are.
        model.train(range(100, 102))
        checkpoint.read(f"{folder}/{begin}/0").assert_existing_objects_matched()
    losses = model.train(range(int(begin), int(end)))
    peers = model.tables[0].replicas.peers
    rank = 0 if peers is None else peers.rank
    checkpoint.write(f"{folder}/{end}/{rank}")  # the first one's is the one to restore
    print(json.dumps({"losses": losses}), flush=True)


if __name__ == "__main__":
    main()
