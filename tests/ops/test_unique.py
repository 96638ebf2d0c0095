from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fusion import ops
from tests import reference
from tests.reference import MODES


def check(mode, ids):
    ours = reference.run(mode, lambda _, ids: tuple(ops.unique_with_counts_v3(ids)), {"ids": ids})
    stock = reference.run(mode, lambda _, ids: tuple(tf.unique_with_counts(ids)), {"ids": ids})
    for actual, expected in zip(ours, stock, strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 1000, 100_000])
def test_equals_stock(mode, dtype, count):
    check(mode, np.random.default_rng(0).integers(-500, 500, count).astype(dtype))


@given(ids=arrays.arrays(np.int64, st.integers(0, 40)))
def test_any_int64_ids(ids):
    check("eager", ids)


@given(ids=arrays.arrays(np.int32, st.integers(0, 40), elements=st.integers(-2, 2)))
def test_any_int32_ids(ids):
    check("eager", ids)


def test_result_is_a_named_tuple():
    out = ops.unique_with_counts_v3(input=[4, 4, 2])
    assert out._fields == ("unique_keys", "unique_idxs", "unique_counts")
    assert [t.numpy().tolist() for t in out] == [[4, 2], [0, 0, 1], [2, 1]]


def test_static_shapes():
    with tf.Graph().as_default():
        out = ops.unique_with_counts_v3(tf.compat.v1.placeholder(tf.int64, [7]))
        assert [t.shape.as_list() for t in out] == [[None], [7], [None]]


def test_has_no_gradient():
    with tf.GradientTape() as tape:
        ids = tf.constant([1, 2])
        out = ops.unique_with_counts_v3(ids)
        total = tf.reduce_sum(tf.cast(out.unique_keys, tf.float32))
    assert tape.gradient(total, ids) is None
