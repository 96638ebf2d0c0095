"""The raw ops on half types: every value, extremes, and bad input."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests import reference
from tests.ops.test_bad_input import BAD_VALUES, CALLS
from tests.reference import MODES, assert_same_bits

HALVES = [np.float16, ml_dtypes.bfloat16]


def assert_same_halves(actual, expected):
    """Equal bits, but that one NaN is as good as another."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n_shards", [1, 2])
def test_every_half_passes_unchanged(mode, dtype, n_shards):
    # TensorFlow's threads take float32 denormals for zeros; halves that are denormals must survive.
    halves = np.arange(2**16, dtype=np.uint16).reshape(-1, 16).view(dtype)
    rows = len(halves)
    shards = [halves[k::n_shards] for k in range(n_shards)]
    ids = np.arange(rows, dtype=np.int32)
    arrays = {f"shard{k}": shard for k, shard in enumerate(shards)} | {
        "top_grad": halves[::-1].copy(),
        "permutation": np.stack([ids % n_shards, ids // n_shards], 1).astype(np.int32),
        "indices": np.stack([ids, ids], 1).astype(np.int64),
        "places": ids,
        "weights": halves[:, 0].copy(),
    }

    def build(_, top_grad, permutation, indices, places, weights, **shards):
        arguments = {
            "emb_shards": [shards[name] for name in sorted(shards)],
            "partition_permutation": permutation,
            "indices_before_unique": indices,
            "is_row_empty": [False] * rows,
            "unique_idxs": places,
            "sp_weights_values": weights,
        }
        shape = tf.constant([rows, 1], tf.int64)
        out = ops.fused_embedding_sparse_post_look_up_v2(sp_dense_shape=shape, **arguments)
        back = ops.fused_embedding_sparse_post_look_up_v2_grad(
            top_grad=top_grad, feature_nums=out.feature_nums, combiner="mean", **arguments
        )
        kept = ops.prune_invalid_and_fill_empty_rows(
            tf.cast(places - 1, tf.int64), indices, shape, weights, prune=True,
            use_sparse_weights=True,
        )  # fmt: skip
        return out.emb_vectors, back.grad_shards, kept.sp_weights_values_out

    output, grads, kept = reference.run(mode, build, arrays)
    assert_same_halves(output, halves)
    assert_same_halves(kept, halves[1:, 0])
    # In gradients stock multiplies by one: bfloat16's denormals, which are float32's, vanish there.
    stock = tf.raw_ops.SparseSegmentMeanGrad(
        grad=arrays["top_grad"], indices=ids, segment_ids=ids, output_dim0=rows
    ).numpy()
    if dtype == np.float16:
        assert_same_bits(stock, arrays["top_grad"])
    for k, gradient in enumerate(grads):
        assert_same_bits(gradient, stock[k::n_shards])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", HALVES)
def test_sums_beyond_the_largest_half(combiner, dtype):
    largest = ml_dtypes.finfo(dtype).max
    table = np.array([[largest], [-largest], [1]], dtype)
    bags = [[0, 0], [1, 1, 1], [0, 1], [0, 0, 1], [0] * 12, [0, 2]]
    rows = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    places = np.concatenate(bags).astype(np.int32)
    out = ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=[table],
        partition_permutation=[[0, 0]],
        sp_dense_shape=[len(bags), 1],
        indices_before_unique=np.stack([rows, rows], 1),
        is_row_empty=[False] * len(bags),
        unique_idxs=places,
        sp_weights_values=table[:1, 0],
        combiner=combiner,
    )
    name = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}[combiner]
    stock = getattr(tf.raw_ops, f"SparseSegment{name}")
    expected = stock(data=table, indices=places, segment_ids=rows.astype(np.int32)).numpy()
    assert not np.isfinite(expected).all() or combiner == "mean"
    assert_same_halves(out.emb_vectors.numpy(), expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("op", "argument", "value", "message"), BAD_VALUES)
def test_a_bad_value_raises(dtype, op, argument, value, message):
    call, inputs = CALLS[op]
    arrays = inputs()
    arrays[argument] = np.array(value, arrays[argument].dtype)
    halves = {k: v.astype(dtype) if v.dtype == np.float32 else v for k, v in arrays.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        reference.run("eager", call, halves)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("batch", [2**50, 2**62])
def test_a_result_that_no_memory_holds(dtype, batch):
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
        ops.fused_embedding_sparse_post_look_up_v2(
            emb_shards=[np.ones((1, 1), dtype)],
            partition_permutation=[[0, 0]],
            sp_dense_shape=[1, 1],
            indices_before_unique=[[batch, 0]],
            is_row_empty=[False],
            unique_idxs=[0],
            sp_weights_values=np.ones(1, dtype),
            row_count="last_row",
        )
