"""Measures one model in its graph, net of its inputs, which variables hold.

python -m benchmarks.clients.net MODEL whole|embeddings
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from benchmarks.clients.models import BATCH, CLIENTS
from benchmarks.measure import in_turns

#: So long calls take turns, and so many calls are one loop, in which Python has no part.
_SECONDS, _CALLS = 6.0, 20


def measure(name: str, part: str) -> dict[str, float]:
    """Returns milliseconds of stock, fused and of reading the inputs, and the ratio without them.

    Raises:
        AssertionError: the results are not the same.
    """
    client = CLIENTS[name]
    whole, embeddings = client.build()
    model = embeddings if part == "embeddings" else whole
    held = {key: tf.Variable(one) for key, one in client.inputs(BATCH).items()}

    def features() -> dict[str, tf.Tensor]:
        return {key: one.read_value() for key, one in held.items()}

    def call() -> list[tf.Tensor]:
        found: list[tf.Tensor] = tf.nest.flatten(model(features(), training=False))
        return found

    def read() -> list[tf.Tensor]:
        with tf.control_dependencies([*features().values()]):
            return [tf.zeros([1])]

    stock, inputs = _loop(call), _loop(read)
    expected = _traced(call)()
    with fusion.fused():
        got = _traced(call)()
        fused = _loop(call)
        fused()
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)
    times = in_turns((stock, fused, inputs), _SECONDS)
    stock_ms, fused_ms, inputs_ms = (statistics.median(one) / _CALLS * 1e3 for one in times)
    return {
        "stock_ms": stock_ms - inputs_ms,
        "fused_ms": fused_ms - inputs_ms,
        "inputs_ms": inputs_ms,
        "ratio": (stock_ms - inputs_ms) / (fused_ms - inputs_ms),
    }


def _traced(function: Callable[[], Any]) -> Callable[[], Any]:
    concrete: Callable[[], Any] = tf.function(function, autograph=False).get_concrete_function()
    return concrete


def _loop(function: Callable[[], list[tf.Tensor]]) -> Callable[[], Any]:
    """A call of a graph that calls a function one time after the other."""

    def once(count: Any, before: Any) -> Any:
        with tf.control_dependencies([before]):
            # An element of each result, so that all are computed.
            firsts = [tf.cast(tf.reshape(one, [-1])[:1], tf.float32) for one in function()]
            return count + 1, tf.add_n(firsts)

    def loop() -> Any:
        state = tf.constant(0), tf.zeros([1])
        return tf.while_loop(lambda count, _: count < _CALLS, once, state, parallel_iterations=1)

    call = _traced(loop)
    call()
    return call


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))
