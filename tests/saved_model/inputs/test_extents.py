"""What is found in graphs: which inputs belong together, and which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model.inputs.constraints import Bounds, Constraints, Extent, Key, Role
from fusion.saved_model.inputs.dataflow import input_meaning

VECTOR, WHOLE = tf.TensorSpec([None]), tf.TensorSpec([None], tf.int64)
A, B = Key("a"), Key("b")


def _found(function: Callable[..., tf.Tensor], *specs: tf.TensorSpec) -> Constraints:
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    names = dict(zip("abc", (tensor.name for tensor in concrete.inputs), strict=False))
    return input_meaning(concrete.graph.as_graph_def(), names).constraints


def _are_linked(found: Constraints) -> bool:
    return Extent(B) in found.linked(Extent(A))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a * b,
        lambda a, b: tf.exp(a)[:, None] + tf.reshape(b, [-1, 1]),
        lambda a, b: tf.stack([a, b], 1),
        lambda a, b: tf.concat([a[:, None], b[:, None]], 1),
        lambda a, b: tf.gather(a, tf.where(b > 0)[:, 0]),
        lambda a, b: tf.cond(a[0] > 0, lambda: a * b, lambda: a),
        lambda a, b: tf.where(a > 0, b, tf.zeros_like(b)),
    ],
)
def test_inputs_that_are_zipped_are_equally_long(function: Callable[..., tf.Tensor]):
    assert _are_linked(_found(function, VECTOR, VECTOR))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: tf.concat([a, b], 0),
        lambda a, b: tf.reduce_sum(a) * b,
        lambda a, b: a[0] * b,
        lambda a, b: tf.stack([tf.reduce_max(a), tf.reduce_max(b)]),
        lambda a, b: tf.math.unsorted_segment_sum(a, tf.cast(a, tf.int32), 9)[:, None] * b[None, :],
    ],
)
def test_inputs_that_are_not_zipped_may_have_any_length(function: Callable[..., tf.Tensor]):
    assert not _are_linked(_found(function, VECTOR, VECTOR))


def test_a_scalar_beside_two_inputs_links_nothing():
    scalar = tf.TensorSpec([])
    concrete = tf.function(lambda a, b, c: (a * c, b * c)).get_concrete_function(
        VECTOR, VECTOR, scalar
    )
    names = dict(zip("abc", (tensor.name for tensor in concrete.inputs), strict=True))
    assert not _are_linked(input_meaning(concrete.graph.as_graph_def(), names).constraints)


def test_differences_of_neighbours_are_row_lengths_only_if_something_has_these():
    def times(a: tf.Tensor) -> tf.Tensor:
        return a[1:] - a[:-1]

    assert _found(times, WHOLE).divider(A) is None

    def splits(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.repeat(tf.range(tf.size(a) - 1), a[1:] - a[:-1]) * tf.cast(b, tf.int32)

    assert _found(splits, WHOLE, WHOLE).divider(A) is Role.SPLITS


def test_lengths_that_mask_padding_divide_nothing():
    def padded(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return b * tf.sequence_mask(a, 6, tf.float32)

    found = _found(padded, WHOLE, tf.TensorSpec([None, 6]))
    assert found.divider(A) is None


def test_assertions_bound_and_order_and_what_is_not_asserted_does_not():
    def check(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        checks = [
            tf.debugging.assert_less(a, tf.constant(9, tf.int64)),
            tf.debugging.assert_less_equal(a, b),
        ]
        with tf.control_dependencies(checks):
            return tf.where(b > 3, a, b)

    found = _found(check, WHOLE, WHOLE)
    assert found.bounds == {A: Bounds(high=9, without_high=True)}
    assert found.orders == {(A, B): False}


def test_what_is_dropped_as_missing_on_both_sides_is_missing_together():
    def weighted(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        ids = tf.gather_nd(a, tf.where(tf.not_equal(a, -1)))
        return tf.cast(ids, tf.float32) * tf.gather_nd(b, tf.where(tf.not_equal(b, 0.0)))

    dense = tf.TensorSpec([None, 5], tf.int64), tf.TensorSpec([None, 5])
    assert _found(weighted, *dense).same_missing(A) == {A: -1, B: 0.0}

    def apart(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        ids = tf.gather_nd(a, tf.where(tf.not_equal(a, -1)))
        return tf.reduce_sum(ids), tf.gather_nd(b, tf.where(tf.not_equal(b, 0.0)))

    assert _found(apart, *dense).same_missing(A) == {}


def _rows_of_four(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    indices = tf.stack([rows, rows], 1)
    return tf.sparse.reorder(tf.SparseTensor(indices, values, [4, 4])).values


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda a, b: tf.RaggedTensor.from_row_starts(a, b).to_sparse().values, [0, 2]),
        (lambda a, b: tf.RaggedTensor.from_row_limits(a, b).to_sparse().values, [2, 3]),
        (
            lambda a, b: tf.RaggedTensor.from_row_splits(
                a, tf.concat([b, [tf.size(a, tf.int64)]], 0)
            ).to_sparse(),
            [0, 2],
        ),
        (lambda a, b: tf.RaggedTensor.from_row_splits(a, b[1:]).to_sparse(), [7, 0, 1, 3]),
        (lambda a, b: tf.math.unsorted_segment_sum(a, b, 4), [2, 0, 1]),
        (_rows_of_four, [2, 0, 1]),
        (
            lambda a, b: tf.cond(
                a[0] > 5, lambda: tf.math.segment_sum(a, b), lambda: tf.reduce_sum(a)[None]
            ),
            [2, 0],
        ),
    ],
)
def test_rows_that_the_model_takes_are_not_malformed(function: Callable[..., Any], rows: list[int]):
    feeds = {"a": np.array([1, 2, 3]), "b": np.array(rows)}
    tf.function(function, autograph=False)(*map(tf.constant, feeds.values()))
    found = _found(function, WHOLE, WHOLE)
    assert found.violation(feeds, ()) is None


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda a, b: tf.RaggedTensor.from_row_splits(a, b, validate=False).to_sparse(), [1, 3]),
        (lambda a, b: tf.math.segment_sum(a, tf.cast(b, tf.int32)), [2, 0, 1]),
        (lambda a, b: tf.sparse.segment_sum(tf.zeros([5, 2]), a, b), [2, 0, 1]),
        (lambda a, b: tf.RaggedTensor.from_row_splits(a, b).to_tensor(), [0, 2]),
    ],
)
def test_rows_that_an_op_refuses_are_malformed(function: Callable[..., Any], rows: list[int]):
    feeds = {"a": np.array([1, 2, 3]), "b": np.array(rows)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(function, autograph=False)(*map(tf.constant, feeds.values()))
    assert "'b' holds no row" in (_found(function, WHOLE, WHOLE).violation(feeds, ()) or "")


def test_row_splits_of_a_spec_are_known_by_the_names_of_its_parts():
    spec = tf.RaggedTensorSpec([None, None], tf.int64)
    function = tf.function(lambda x: x.value_rowids(), input_signature=[spec], autograph=False)
    concrete = function.get_concrete_function()
    names = dict(zip(("x", "x_1"), (tensor.name for tensor in concrete.inputs), strict=True))
    found = input_meaning(concrete.graph.as_graph_def(), names).constraints
    feeds = {"x": np.arange(5), "x_1": np.array([1, 3, 6])}
    assert "'x_1' holds no row splits of 'x'" in (found.violation(feeds, ()) or "")
