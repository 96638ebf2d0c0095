from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fusion import ops
from tests import reference
from tests.reference import MODES, assert_same_bits

WEIGHTS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
FLAGS = list(itertools.product([False, True], repeat=4))


def fused(fill, prune, use_weights, prune_weights, default_id=-1, default_weight=1.0, **attrs):
    def build(_, indices, values, dense_shape, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            out = ops.prune_invalid_and_fill_empty_rows(
                sp_values=values,
                sp_indices=indices,
                sp_dense_shape=dense_shape,
                sp_weights_values=weights,
                fill_empty_row=fill,
                prune=prune,
                default_id=default_id,
                use_sparse_weights=use_weights,
                prune_sparse_weights=prune_weights,
                default_weight=default_weight,
                **attrs,
            )
            loss = weighed(out.sp_weights_values_out, out.sp_values_out)
        gradient = tape.gradient(loss, weights, unconnected_gradients="zero")
        return tuple(out), gradient

    return build


def weighed(weights, ids):
    """A loss whose gradient depends on what an entry is, not on its place."""
    return tf.reduce_sum(weights * (0.375 * tf.cast(ids, weights.dtype) + 1))


def stock(fill, prune, use_weights, prune_weights, default_id=-1, default_weight=1.0):
    """The same from stock ops, entries in the order of rows after filling."""

    def build(_, indices, values, dense_shape, weights):
        ids = tf.SparseTensor(indices, values, dense_shape)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            filler = tf.constant(default_weight, weights.dtype)
            used = weights if use_weights else tf.fill(tf.shape(values), filler)
            scale = tf.SparseTensor(indices, used, dense_shape)
            if prune:
                keep = values >= 0
                if use_weights and prune_weights:
                    keep &= weights > 0
                ids, scale = tf.sparse.retain(ids, keep), tf.sparse.retain(scale, keep)
            filled, empty = tf.sparse.fill_empty_rows(ids, tf.cast(max(default_id, 0), ids.dtype))
            if fill:
                ids, (scale, _) = filled, tf.sparse.fill_empty_rows(scale, filler)
            loss = weighed(scale.values, ids.values)
        gradient = tape.gradient(loss, weights, unconnected_gradients="zero")
        return (ids.values, ids.indices, scale.values, empty), tf.convert_to_tensor(gradient)

    return build


def by_row(result):
    """The entries in the order of rows, stable."""
    (values, indices, weights, empty), gradient = result
    order = np.argsort(indices[:, 0], kind="stable")
    return values[order], indices[order], weights[order], empty, gradient


def batch(seed, lengths, dtype=np.int64, shuffled=False, weights_dtype=np.float32):
    rng = np.random.default_rng(seed)
    arrays = reference.sparse(rng, lengths, 10, dtype, negative=0.3, shuffled=shuffled)
    weights = rng.choice([-1, 0, -0.0, 0.5, 2, np.nan, np.inf], len(arrays["values"]))
    return arrays | {"weights": weights.astype(weights_dtype)}


@pytest.mark.parametrize(
    ("dtype", "weights_dtype"),
    [(np.int32, np.float32), *((np.int64, weights_dtype) for weights_dtype in WEIGHTS)],
)
@pytest.mark.parametrize("flags", FLAGS)
def test_equals_stock(flags, dtype, weights_dtype):
    arrays = batch(1, [3, 0, 1, 8, 0, 0, 2, 5, 1, 1], dtype, weights_dtype=weights_dtype)
    actual = by_row(reference.run("eager", fused(*flags), arrays))
    expected = by_row(reference.run("eager", stock(*flags), arrays))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("default_id", [-1, 0, 7])
@pytest.mark.parametrize("weights_dtype", WEIGHTS)
def test_default_id_and_weight(mode, default_id, weights_dtype):
    arrays = batch(2, [0, 4, 0, 2], weights_dtype=weights_dtype)
    flags = True, True, True, True, default_id, 0.5
    actual = by_row(reference.run(mode, fused(*flags), arrays))
    expected = by_row(reference.run(mode, stock(*flags), arrays))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_same_bits(ours, theirs)


@given(
    lengths=st.lists(st.integers(0, 6), max_size=12),
    flags=st.sampled_from(FLAGS),
    shuffled=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_batch_equals_stock(lengths, flags, shuffled, seed):
    arrays = batch(seed, lengths, shuffled=shuffled)
    actual = by_row(reference.run("eager", fused(*flags), arrays))
    expected = by_row(reference.run("eager", stock(*flags), arrays))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_same_bits(ours, theirs)


def test_fillers_come_last_in_the_order_of_rows():
    out = ops.prune_invalid_and_fill_empty_rows(
        sp_values=tf.constant([5, -1, 6], tf.int64),
        sp_indices=tf.constant([[3, 0], [1, 0], [2, 9]], tf.int64),
        sp_dense_shape=tf.constant([5, 1], tf.int64),
        sp_weights_values=tf.constant([2.0, 3.0, 4.0]),
        fill_empty_row=True,
        prune=True,
        default_id=8,
        use_sparse_weights=True,
    )
    assert out.sp_values_out.numpy().tolist() == [5, 6, 8, 8, 8]
    assert out.sp_indices_out.numpy().tolist() == [[3, 0], [2, 9], [0, 0], [1, 0], [4, 0]]
    assert out.sp_weights_values_out.numpy().tolist() == [2, 4, 1, 1, 1]
    assert out.is_row_empty.numpy().tolist() == [True, True, False, False, True]


def test_result_is_a_named_tuple():
    out = ops.prune_invalid_and_fill_empty_rows([1], [[0, 0]], [1, 1], [1.0])
    assert out._fields == (
        "sp_values_out",
        "sp_indices_out",
        "sp_weights_values_out",
        "is_row_empty",
    )


def test_without_flags_entries_pass_through():
    out = ops.prune_invalid_and_fill_empty_rows(
        sp_values=tf.constant([-5, 3]),
        sp_indices=[[1, 7], [1, 7]],
        sp_dense_shape=[3, 2],
        sp_weights_values=[9.0],
        default_weight=0.25,
    )
    assert out.sp_values_out.numpy().tolist() == [-5, 3]
    assert out.sp_indices_out.numpy().tolist() == [[1, 7], [1, 7]]
    assert out.sp_weights_values_out.numpy().tolist() == [0.25, 0.25]
    assert out.is_row_empty.numpy().tolist() == [True, False, True]


@pytest.mark.parametrize("weights_dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("ids_dtype", [tf.int32, tf.int64])
def test_dtypes(ids_dtype, weights_dtype):
    out = ops.prune_invalid_and_fill_empty_rows(
        sp_values=tf.constant([3], ids_dtype),
        sp_indices=[[0, 0]],
        sp_dense_shape=[2, 1],
        sp_weights_values=tf.constant([0.1], weights_dtype),
        fill_empty_row=True,
        use_sparse_weights=True,
    )
    assert [t.dtype for t in out] == [ids_dtype, tf.int64, weights_dtype, tf.bool]
    assert out.sp_weights_values_out.numpy()[0] == np.array(0.1, weights_dtype.as_numpy_dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("prune", [False, True])
def test_ids_outside_the_buckets_become_the_default_and_stay(mode, ids_dtype, prune):
    arrays = batch(3, [0, 4, 0, 9, 2, 1], ids_dtype)
    flags = True, prune, True, True

    def in_buckets(_, values, **tensors):
        outside = (values < 0) | (values >= 6)
        values = tf.where(outside, tf.constant(4, values.dtype), values)
        return stock(*flags)(_, values=values, **tensors)

    def ours(_, **tensors):
        return fused(*flags, num_buckets=6, bucket_default=4)(_, **tensors)

    actual = by_row(reference.run(mode, ours, arrays))
    expected = by_row(reference.run(mode, in_buckets, arrays))
    for mine, theirs in zip(actual, expected, strict=True):
        assert_same_bits(mine, theirs)


def test_buckets_apply_where_nothing_is_dropped():
    out = ops.prune_invalid_and_fill_empty_rows(
        sp_values=tf.constant([-5, 3, 7]),
        sp_indices=[[1, 7], [1, 7], [0, 0]],
        sp_dense_shape=[3, 2],
        sp_weights_values=[9.0],
        num_buckets=7,
        bucket_default=1,
        fill_empty_row=True,
        default_id=9,
    )
    assert out.sp_values_out.numpy().tolist() == [1, 3, 1, 9]


@pytest.mark.parametrize("attr", ["num_buckets", "bucket_default"])
def test_negative_buckets_are_refused(attr):
    with pytest.raises(ValueError, match=attr):
        ops.prune_invalid_and_fill_empty_rows([1], [[0, 0]], [1, 1], [1.0], **{attr: -1})


def test_static_shapes():
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        out = ops.prune_invalid_and_fill_empty_rows(
            sp_values=placeholder(tf.int64, None),
            sp_indices=placeholder(tf.int64, None),
            sp_dense_shape=placeholder(tf.int64, None),
            sp_weights_values=placeholder(tf.float32, None),
        )
        assert [t.shape.as_list() for t in out] == [[None], [None, 2], [None], [None]]
