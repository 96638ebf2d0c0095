"""Results of stock TensorFlow are shared by comparisons with the same arguments, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from tests.memo import computed_once, identity


@dataclass
class Point:
    x: int


def adds(number):
    return lambda value: value + number


ALIKE = {
    "array": lambda: np.array([1, 2]),
    "objects": lambda: np.array(["a", "b"], object),
    "tensor": lambda: tf.constant([1.0]),
    "sparse tensor": lambda: tf.sparse.from_dense([[1, 2]]),
    "ragged tensor": lambda: tf.ragged.constant([[1, 2], []]),
    "partial": lambda: partial(adds, 3),
    "function": lambda: adds(3),
    "mapping": lambda: {"a": np.array([1])},
    "record": lambda: Point(1),
}
DIFFERENT = [
    (np.array([1, 2]), np.array([1, 3])),
    (np.array([1, 2]), np.array([1, 2], np.int32)),
    (np.array([1, 2]), np.array([[1, 2]])),
    (tf.constant([1.0]), tf.constant([2.0])),
    (tf.sparse.from_dense([[1, 2]]), tf.sparse.from_dense([[1, 3]])),
    (adds(3), adds(4)),
    (partial(adds, 3), partial(adds, number=3)),
    (lambda value: value + 1, lambda value: value - 1),
    ({"a": 1}, {"b": 1}),
    (Point(1), Point(2)),
    (1, True),
    (1, 1.0),
    ([1], (1,)),
    (object(), object()),
]


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_the_same_is_computed_once(make):
    function = Mock(side_effect=lambda value: object())
    assert computed_once(function, make()) is computed_once(function, make())
    assert function.call_count == 1


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs_is_not_shared(one, other):
    assert identity(one) != identity(other)
