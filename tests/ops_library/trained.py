"""Trains a model of a SavedModel for some steps with stock TensorFlow and libraries of ops.

    trained.py MODEL [LIBRARY ...]

Prints each loss, and at the end the sum of each variable, in hexadecimal.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

COLUMNS = "abc"
_STEPS = 5


def main(model: str, *libraries: str) -> None:
    """The program."""
    for library in libraries:
        tf.load_op_library(library)
    loaded = tf.saved_model.load(model)
    rng = np.random.default_rng(3)
    for _ in range(_STEPS):
        ids = {name: tf.constant(rng.integers(0, 50, (40, 5))) for name in COLUMNS}
        print(float(loaded.signatures["train"](**ids)["loss"]).hex())
    print([float(tf.reduce_sum(table)).hex() for table in loaded.tables])
    assert "fusion" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
