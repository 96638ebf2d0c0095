"""Whole ops over the launcher, with the simulator in the place of NVIDIA's driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.gpu_ops.driver import gpus, on_gpu


def same(found: Any, wanted: Any) -> None:
    """The bits of tensors as NumPy arrays."""
    for one, other in zip(found, (tensor.numpy() for tensor in wanted), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_unique(count: int, dtype: Any) -> None:
    ids = np.random.default_rng(count).integers(-9, 9, count).astype(dtype)
    gpus().log.clear()
    found = on_gpu(lambda x: ops.unique_with_counts_v3(input=x), ids)
    same(found, ops.unique_with_counts_v3(input=ids))
    assert gpus().log.count("insert_ids") == 1
    assert gpus().log.count("cuStreamSynchronize") == 1


@pytest.mark.parametrize("attrs", [{}, {"fill_empty_row": True, "default_id": 3}])
@pytest.mark.parametrize(
    ("dtype", "stored"), [("int32", "float32"), ("int64", "bfloat16"), ("int64", "float64")]
)
@pytest.mark.parametrize("prunes", ["", "ids", "weights", "buckets"])
def test_prune(prunes: str, dtype: str, stored: str, attrs: dict[str, Any]) -> None:
    draw, count, batch = np.random.default_rng(7), 30, 12
    ids = tf.constant(draw.integers(-3, 9, count), dtype)
    indices = np.stack([draw.integers(0, batch, count), draw.integers(0, 99, count)], 1)
    weighted = prunes == "weights"
    weights = tf.cast(draw.integers(-2, 4, count if weighted else 1), stored)
    attrs = attrs | {
        "prune": prunes != "",
        "use_sparse_weights": weighted,
        "prune_sparse_weights": weighted,
        "default_weight": 0.3,
        "num_buckets": 5 if prunes == "buckets" else 0,
    }

    def prune(ids: Any, indices: Any, weights: Any) -> Any:
        return ops.prune_invalid_and_fill_empty_rows(
            sp_values=ids,
            sp_indices=indices,
            sp_dense_shape=[batch, 99],
            sp_weights_values=weights,
            **attrs,
        )

    gpus().log.clear()
    found = on_gpu(prune, ids, indices, weights)
    assert gpus().log.count("cuStreamSynchronize") == 1
    same(found, prune(ids, indices, weights))


def test_rows_outside_the_batch_are_an_error() -> None:
    def prune(rows: Any) -> Any:
        return ops.prune_invalid_and_fill_empty_rows(
            sp_values=tf.constant([1, 2], tf.int64),
            sp_indices=rows,
            sp_dense_shape=tf.constant([3, 1], tf.int64),
            sp_weights_values=[0.0],
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="entry 1 has row 3, which is not in"):
        on_gpu(prune, np.array([[0, 0], [3, 0]]))
    assert on_gpu(prune, np.array([[0, 0], [2, 0]])).is_row_empty.tolist() == [False, True, False]
