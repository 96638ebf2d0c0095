"""Partitions and the v1 family over the launcher, with the simulator as the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.gpu_ops.driver import gpus, on_gpu
from tests.gpu_ops.test_ops import same, table

SHAPES = [[7, 4], [6, 4], [6, 4]]


def flat(found: Any) -> list[Any]:
    return tf.nest.flatten(found)


def waits() -> int:
    return gpus().log.count("cuStreamSynchronize")


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("strategy", ["div", "mod", "mod_ev"])
@pytest.mark.parametrize("count", [0, 30])
def test_partition(count: int, strategy: str, dtype: Any) -> None:
    ids = np.random.default_rng(count).integers(0, 18, count).astype(dtype)

    def split(ids: Any) -> Any:
        shapes = [tf.constant(shape, tf.int64) for shape in SHAPES]
        return ops.partition_with_permutation(
            input=ids, partition_shapes=shapes, partition_strategy=strategy
        )

    gpus().log.clear()
    found = on_gpu(split, ids)
    assert waits() == 1
    same(flat(found), flat(split(ids)))


def test_partition_refuses_what_the_cpu_refuses() -> None:
    def split(ids: Any, rows: Any) -> Any:
        return ops.partition_with_permutation(input=ids, partition_shapes=[rows, rows])

    good = np.array([3, 4], np.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="element 1 has id 6, which is not in"):
        on_gpu(split, np.array([5, 6]), good)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has -1 rows"):
        on_gpu(split, np.array([5]), np.array([-1, 4]))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"fill_empty_row": True, "prune_invalid_id": True, "default_id": 5},
        {"fill_empty_row": True, "prune_invalid_id": True, "entry_order": "row"},
        {"prune_invalid_id": True, "use_sparse_weights": True, "prune_sparse_weights": True},
        {"row_count": "last_row", "fill_empty_row": True, "partition_strategy": "mod"},
    ],
)
def test_pre_lookup(attrs: dict[str, Any], shards: int) -> None:
    draw, count, batch = np.random.default_rng(2), 25, 9
    ids = draw.integers(-2 if "prune_invalid_id" in attrs else 0, 18, count)
    rows = draw.integers(0, batch, count)
    last_row = "row_count" in attrs
    indices = np.stack([np.sort(rows) if last_row else rows, draw.integers(0, 9, count)], 1)
    weighted = "use_sparse_weights" in attrs
    weights = draw.integers(-1, 3, count if weighted else 1).astype(np.float32)

    def pre(ids: Any, indices: Any, weights: Any) -> Any:
        shapes = SHAPES if shards > 1 else [[19, 4]]
        return ops.fused_embedding_sparse_pre_look_up(
            partition_shapes=[tf.constant(shape, tf.int64) for shape in shapes],
            sp_values=ids,
            sp_indices=indices,
            sp_dense_shape=tf.constant([batch, 9], tf.int64),
            sp_weights_values=weights,
            default_weight=0.3,
            **attrs,
        )

    gpus().log.clear()
    found = on_gpu(pre, ids, indices, weights)
    assert waits() == 1 + int(last_row)
    same(flat(found), flat(pre(ids, indices, weights)))


@pytest.mark.parametrize(("stored", "sizes"), [("float32", [12]), ("bfloat16", [5, 0, 9])])
@pytest.mark.parametrize(
    "attrs",
    [
        {"combiner": "mean"},
        {"combiner": "sqrtn", "use_sparse_weights": True, "default_id": 2},
        {"combiner": "sum", "max_norm": 0.75},
        {"combiner": "mean", "row_count": "last_row"},
    ],
)
def test_post_lookup(attrs: dict[str, Any], sizes: list[int], stored: str) -> None:
    draw, batch = np.random.default_rng(4), 6
    last_row, shards = "row_count" in attrs, len(sizes)
    rows = [draw.integers(0, batch, size) for size in sizes]
    indices = [
        np.stack([np.sort(one) if last_row else one, draw.integers(-3, 9, one.size)], 1)
        for one in rows
    ]
    weighted = "use_sparse_weights" in attrs
    weights = [tf.cast(draw.integers(-1, 3, size if weighted else 1), stored) for size in sizes]
    flags = (np.arange(batch + 20) == 1).astype(np.int32)

    def post(*given: Any) -> Any:
        parts = [list(given[k * shards : (k + 1) * shards]) for k in range(3)]
        return ops.fused_embedding_sparse_post_look_up(
            emb_shards=parts[0],
            partitioned_indices=parts[1],
            sp_dense_shape=tf.constant([batch, 9], tf.int64),
            row_empty_and_invalid_flags=given[-1],
            partitioned_values=[one[:, 0] for one in parts[1]],
            partitioned_weights=parts[2],
            **attrs,
        )

    given = [*(table(n, 5, stored, k) for k, n in enumerate(sizes)), *indices, *weights, flags]
    gpus().log.clear()
    found = on_gpu(post, *given)
    assert waits() == int(last_row or shards > 1)
    same(found, post(*given))


def test_more_rows_than_any_result_has() -> None:
    """Of the last entry's row; on a CPU memory cannot be had for them."""

    def post(rows: Any, indices: Any) -> Any:
        return ops.fused_embedding_sparse_post_look_up(
            emb_shards=[rows],
            partitioned_indices=[indices],
            sp_dense_shape=tf.constant([1, 9], tf.int64),
            row_empty_and_invalid_flags=np.zeros(1, np.int32),
            partitioned_values=[indices[:, 0]],
            partitioned_weights=[[0.0]],
            row_count="last_row",
        )

    given = table(1, 4, "float32"), np.array([[2**63 - 1, 0]])
    for run in (post, lambda *tensors: on_gpu(post, *tensors)):
        with pytest.raises(tf.errors.OpError, match=str(2**48 + 1)):
            run(*given)
