from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests import reference
from tests.reference import MODES, assert_same_bits

IDS = [np.int32, np.int64]


def matrix(dtype, shape=(40, 6), seed=1):
    return np.random.default_rng(seed).integers(-3, 12, shape).astype(dtype)


def by_sparse_op(ids, out_type, ignored=None, stride=0, **attrs):
    """The same by way of a SparseTensor."""
    kept = tf.ones_like(ids, tf.bool) if ignored is None else tf.not_equal(ids, ignored)
    places = tf.where(kept)
    values = tf.cast(tf.gather_nd(ids, places), out_type)
    values += tf.cast(places[:, 1], out_type) * stride
    shape = tf.shape(ids, tf.int64)
    out = ops.prune_invalid_and_fill_empty_rows(values, places, shape, [1.0], **attrs)
    return out.sp_values_out, out.sp_indices_out, out.is_row_empty, shape


OPTIONS = [
    {},
    {"ignored": -1},
    {"ignored": 4, "prune": True},
    {"prune": True, "fill_empty_row": True},
    {"stride": 12, "fill_empty_row": True, "default_id": 3},
    {"ignored": -1, "num_buckets": 9, "bucket_default": 5, "prune": True, "fill_empty_row": True},
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", IDS)
@pytest.mark.parametrize("looked_up", IDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_the_op_for_sparse_ids(mode, given, looked_up, options):
    out_type = tf.as_dtype(looked_up)
    ignored, stride = options.get("ignored"), options.get("stride", 0)
    attrs = {k: v for k, v in options.items() if k not in ("ignored", "stride")}

    def ours(_, ids):
        unused = {} if ignored is None else {"use_ignored_id": True, "ignored_id": ignored}
        out = ops.prune_dense_and_fill_empty_rows(
            dense_ids=ids, Tid=out_type, column_stride=stride, **unused, **attrs
        )
        return tuple(out)

    def theirs(_, ids):
        return by_sparse_op(ids, out_type, ignored, stride, **attrs)

    for shape in ((40, 6), (7, 1), (0, 4), (3, 0)):
        arrays = {"ids": matrix(given, shape)}
        actual, expected = (reference.run(mode, build, arrays) for build in (ours, theirs))
        for one, other in zip(actual, expected, strict=True):
            assert_same_bits(one, other)


def test_result_is_a_named_tuple_with_static_shapes():
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [5, None])
        out = ops.prune_dense_and_fill_empty_rows(dense_ids=ids, Tid=tf.int64)
    assert out._fields == (
        "sp_values_out",
        "sp_indices_out",
        "is_row_empty",
        "sp_dense_shape_out",
    )
    assert [t.dtype for t in out] == [tf.int64, tf.int64, tf.bool, tf.int64]
    assert [t.shape.as_list() for t in out] == [[None], [None, 2], [5], [2]]


@pytest.mark.parametrize("ids", [tf.zeros([3], tf.int64), tf.zeros([3, 1, 1], tf.int64)])
def test_ids_that_are_no_matrix_are_refused(ids):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"rank 2|dense_ids"):
        ops.prune_dense_and_fill_empty_rows(dense_ids=ids, Tid=tf.int64)


def test_a_default_id_that_does_not_fit_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="default_id = 2147483648"):
        ops.prune_dense_and_fill_empty_rows(
            dense_ids=[[1]], Tid=tf.int32, default_id=2**31, fill_empty_row=True
        )


def test_ids_have_no_gradient():
    with tf.Graph().as_default():
        ids = tf.constant([[1, 2]])
        out = ops.prune_dense_and_fill_empty_rows(dense_ids=ids, Tid=tf.int32)
        assert tf.gradients(tf.cast(out.sp_values_out, tf.float32), ids) == [None]
