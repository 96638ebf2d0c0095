"""Loads a library of ops into stock TensorFlow, and compares models that take tf.Examples.

served_examples.py MODEL FUSED LIBRARY
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

TEXT = "Name: <unknown>, Feature: id (data type: int64) is required but could not be found."


def serialized(number: int) -> bytes:
    """An Example, and feature lists behind it: it is a SequenceExample, too. Some have no bag."""
    example = tf.train.Example()
    example.features.feature["id"].int64_list.value.append(number)
    if number % 3:
        example.features.feature["bag"].int64_list.value.extend(range(number % 7))
    example.features.feature["text"].bytes_list.value.append(b"%d" % number * (number % 20))
    sequence = tf.train.SequenceExample()
    steps = sequence.feature_lists.feature_list["steps"]
    for step in range(number % 4):
        steps.feature.add().int64_list.value.append(step)
    return example.SerializeToString() + sequence.SerializeToString()


def refusal(signature: Callable[..., object]) -> str:
    """What a model says of an Example without an id."""
    try:
        signature(examples=tf.constant([serialized(1), b""]))
    except tf.errors.InvalidArgumentError as error:
        return error.message
    return ""


def main(model: str, fused: str, library: str) -> None:
    tf.load_op_library(library)
    signatures = [
        tf.saved_model.load(path).signatures["serving_default"] for path in (model, fused)
    ]
    for batch in (1, 7, 300):
        rows = tf.constant([serialized(number) for number in range(batch)])
        given, wanted = (one(examples=rows) for one in signatures)
        for name, value in wanted.items():
            np.testing.assert_array_equal(given[name].numpy(), value.numpy())
    assert all(TEXT in refusal(one) for one in signatures)
    assert "fusion" not in sys.modules
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
