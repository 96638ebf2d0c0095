"""One small lookup, and whether running it used the fused op."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.grappler.executed import executed, lookups

TABLE = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
INDICES = np.array([[0, 0], [0, 2], [2, 0], [3, 1]], np.int64)
VALUES = np.array([3, 19, -1, 4], np.int64)


def ids() -> tf.SparseTensor:
    return tf.SparseTensor(INDICES, VALUES, [5, 4])


def look_up(table: Any, one: Any) -> tf.Tensor:
    return tf.nn.safe_embedding_lookup_sparse(table, one, combiner="mean")


def expected() -> Any:
    """What eager stock ops give."""
    return look_up(tf.constant(TABLE), ids()).numpy()


def new_function() -> Any:
    """A function that TensorFlow has not optimized yet."""
    table = tf.Variable(TABLE)
    return tf.function(lambda one: look_up(table, one))


def is_fused(function: Any = None) -> bool:
    """Runs a function, a new one if none is given, and says which op it ran; checks its values."""
    function = new_function() if function is None else function
    with executed() as ran:
        output = function(ids())
    np.testing.assert_array_equal(output, expected())
    found = lookups(ran)
    assert sorted(found.values()) == [0, 1]
    return found["fused"] == 1
