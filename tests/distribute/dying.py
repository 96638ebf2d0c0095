"""A worker that ends in the middle of a training; a program, which prints what the others are told.

python -m tests.distribute.dying
"""

from __future__ import annotations

import os
import sys

import tensorflow as tf

from tests.distribute.training import OPTIMIZERS, Model, strategy_of


def main() -> None:
    model = Model(strategy_of(1), OPTIMIZERS["sgd"], 3)
    (rank,) = model.tables[0].replicas.devices
    try:
        model.train(range(2))  # the end of which may be still on its way when the other one ends
        if rank == 1:
            _end("gone")
        model.train(range(2, 4))
    except tf.errors.OpError as error:
        _end(" ".join(error.message.split()))
    _end("nothing")


def _end(said: str) -> None:
    """Ends the process as if it was killed: without a word to the others."""
    print(said)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
