"""Loads libraries of ops into stock TensorFlow, and compares a fused model with the original.

served.py MODEL FUSED LIBRARY [LIBRARY ...]
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

COLUMNS = "abc"


def main(model: str, fused: str, *libraries: str) -> None:
    for library in libraries:
        tf.load_op_library(library)
    rng = np.random.default_rng(1)
    for batch in (1, 7, 300):
        ids = {
            name: tf.constant(rng.integers(-3, 50, (batch, 5)).astype(np.int64)) for name in COLUMNS
        }
        given, wanted = (
            tf.saved_model.load(path).signatures["serving_default"](**ids)
            for path in (model, fused)
        )
        assert {*given} == {*wanted}
        for name, value in wanted.items():
            np.testing.assert_array_equal(given[name].numpy(), value.numpy())
    assert "fusion" not in sys.modules
    assert "numba" not in sys.modules
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
