"""What a graph proves about ids, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from fusion.passes.analysis.value_ranges import Range, is_in_row_order, range_of
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView

v1 = tf.compat.v1


def view_of(build: Callable[[], Any]) -> tuple[GraphView, Tensor]:
    with tf.Graph().as_default() as graph:
        made = build()
        tensor = Tensor(made.op.name, made.value_index)
    return GraphView.of_graph(graph.as_graph_def(add_shapes=True)), tensor


def given(dtype: Any = tf.int64) -> tf.Tensor:
    return v1.placeholder(dtype, [None])


def number(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int64)


def words() -> tf.Tensor:
    return v1.placeholder(tf.string, [None, 3])


def hashed() -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(words(), 7)


RANGES: dict[str, tuple[Callable[[], Any], Range]] = {
    "given": (given, Range()),
    "constant": (lambda: tf.constant([3, -2]), Range(-2, 3)),
    "empty constant": (lambda: tf.zeros([0], tf.int32), Range()),
    "hashed": (hashed, Range(0, 6)),
    "hashed strongly": (lambda: tf.strings.to_hash_bucket_strong(words(), 7, [1, 2]), Range(0, 6)),
    "buckets": (
        lambda: tf.raw_ops.Bucketize(input=given(tf.float32), boundaries=[0.0, 1.0]),
        Range(0, 2),
    ),
    "some of them": (lambda: tf.reshape(hashed()[1:], [-1]), Range(0, 6)),
    "gathered": (lambda: tf.gather_nd(hashed(), tf.where(given(tf.bool))), Range(0, 6)),
    "cast": (lambda: tf.cast(hashed(), tf.int32), Range(0, 6)),
    "cast, too large": (
        lambda: tf.cast(tf.strings.to_hash_bucket_fast(words(), 2**40), tf.int32),
        Range(),
    ),
    "cast, unknown": (
        lambda: tf.cast(tf.maximum(given(), number(0)), tf.int32),
        Range(),
    ),
    "chosen": (lambda: tf.where(given(tf.bool), given(), number(1)), Range()),
    "chosen of known": (
        lambda: tf.where(tf.reshape(hashed(), [-1]) > 2, number(9), number(1)),
        Range(1, 9),
    ),
    "at least": (lambda: tf.maximum(given(), number(2)), Range(2, None)),
    "modulo": (lambda: tf.math.floormod(given(), number(5)), Range(0, 4)),
    "modulo of a negative number": (
        lambda: tf.math.floormod(given(), number(-5)),
        Range(),
    ),
    "sum": (lambda: hashed() + hashed(), Range()),
}


@pytest.mark.parametrize("name", RANGES)
def test_bounds_are_proven_or_unknown(name: str) -> None:
    build, expected = RANGES[name]
    assert range_of(Value(*view_of(build))) == expected


def parsed(index: int) -> tf.Tensor:
    features = {"a": v1.VarLenFeature(tf.int64), "b": v1.FixedLenFeature([1], tf.int64)}
    found = v1.parse_example(v1.placeholder(tf.string, [None]), features)
    return [found["a"].indices, found["a"].dense_shape, found["b"]][index]


ORDERED: dict[str, tuple[Callable[[], Any], bool]] = {
    "given": (lambda: v1.placeholder(tf.int64, [None, 2]), False),
    "found": (lambda: tf.where(v1.placeholder(tf.bool, [None, 3])), True),
    "parsed": (lambda: parsed(0), True),
    "another output of a parser": (lambda: parsed(1), False),
    "of ragged": (
        lambda: tf.RaggedTensor.from_row_splits(given(), given()).to_sparse().indices,
        True,
    ),
    "sorted": (lambda: tf.sparse.reorder(v1.sparse_placeholder(tf.int64)).indices, True),
    "split words": (lambda: v1.string_split(given(tf.string)).indices, True),
    "reshaped": (
        lambda: tf.sparse.reshape(tf.sparse.from_dense(words()), [-1, 1]).indices,
        True,
    ),
    "reshaped, of any order": (
        lambda: tf.sparse.reshape(v1.sparse_placeholder(tf.int64), [-1, 1]).indices,
        False,
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_order_is_proven_or_unknown(name: str) -> None:
    build, expected = ORDERED[name]
    assert is_in_row_order(Value(*view_of(build))) == expected
