"""Runs a signature of a SavedModel step by step, with stock TensorFlow and libraries of ops.

    trained.py SIGNATURE FEEDS.npz MODEL [LIBRARY ...]

Arrays of the file are called as the inputs and the step: `items/0`. Prints each output of each
step, and at the end the variables, by what their bytes are hashed to.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import tensorflow as tf


def main(signature: str, feeds: str, model: str, *libraries: str) -> None:
    """The program."""
    for library in libraries:
        tf.load_op_library(library)
    loaded = tf.saved_model.load(model)
    steps: dict[int, dict[str, tf.Tensor]] = {}
    for name, array in np.load(feeds).items():
        key, step = name.rsplit("/", 1)
        steps.setdefault(int(step), {})[key] = tf.constant(array)
    for step in sorted(steps):
        outputs = loaded.signatures[signature](**steps[step])
        print(step, {name: hashed(value.numpy()) for name, value in sorted(outputs.items())})
    variables = loaded.signatures[signature].variables
    assert variables
    print([hashed(variable.numpy()) for variable in variables])
    assert "fusion" not in sys.modules


def hashed(array: np.ndarray) -> str:
    """What the bytes of an array are hashed to."""
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    main(*sys.argv[1:])
