"""Calls in TensorFlow's graphs, where what a call costs in Python is no matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def traced(function: Callable[[], Any]) -> Callable[[], Any]:
    """A call of a function that was made a graph."""
    concrete: Callable[[], Any] = tf.function(function, autograph=False).get_concrete_function()
    return concrete


def loop(function: Callable[[], Any], count: int) -> Callable[[], Any]:
    """A call of a graph that calls a function so often, one call after the other.

    It was called once. With a count of 1 there is no loop.
    """

    def first() -> tf.Tensor:
        # An element of each result, so that all are computed.
        parts = tf.nest.flatten(function())
        return tf.add_n([tf.cast(tf.reshape(one, [-1])[:1], tf.float32) for one in parts])

    def once(number: Any, before: Any) -> Any:
        with tf.control_dependencies([before]):
            return number + 1, first()

    def repeated() -> Any:
        start = tf.constant(0), tf.zeros([1])
        return tf.while_loop(lambda number, _: number < count, once, start, parallel_iterations=1)

    call = traced(first if count == 1 else repeated)
    call()
    return call


def net_of(inputs: str, times: Mapping[str, Sequence[float]], count: int) -> dict[str, float]:
    """Milliseconds of stock's and the fused calls in loops, net of those of the inputs alone."""
    ms = {name: 1e3 * float(np.median(found)) / count for name, found in times.items()}
    stock, fused = (ms[name] - ms[inputs] for name in ("stock", "fused"))
    found = {"stock, ms": stock, "fused, ms": fused, f"{inputs}, ms": ms[inputs]}
    return {**found, "over stock": stock / fused}


def reading(values: Callable[[], Sequence[tf.Tensor]]) -> Callable[[], tf.Tensor]:
    """A function that makes the same inputs and nothing else."""

    def read() -> tf.Tensor:
        with tf.control_dependencies([*values()]):
            return tf.zeros([1])

    return read
