"""Loads a library of ops into stock TensorFlow, and compares models that cross features.

served_crosses.py MODEL FUSED LIBRARY
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf


def main(model: str, fused: str, library: str) -> None:
    tf.load_op_library(library)
    signatures = [
        tf.saved_model.load(path).signatures["serving_default"] for path in (model, fused)
    ]
    for batch in (0, 1, 700):
        words = [b"%d" % number * (number % 9) for number in range(batch)]
        inputs = {
            "word": tf.constant(words, tf.string, [batch, 1]),
            "number": tf.reshape(tf.range(batch, dtype=tf.int64), [batch, 1]),
        }
        for value, other in zip(*(one(**inputs).values() for one in signatures), strict=True):
            np.testing.assert_array_equal(value.numpy(), other.numpy())
    messages = []
    for one in signatures:
        try:
            one(word=tf.constant([["a"]]), number=tf.constant([[1], [2]], tf.int64))
        except tf.errors.InvalidArgumentError as error:
            messages.append("Expected batch size 1 got 2 at dense tensor 1" in error.message)
    assert messages == [True, True]
    assert "fusion" not in sys.modules
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
