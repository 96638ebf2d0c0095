"""Gradients of both families, dense ids and row updates over the launcher, in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.gpu_ops.driver import gpus, on_gpu
from tests.gpu_ops.test_ops import same, table

# Of numbers that are too large, and of those that are none.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def waits() -> int:
    return gpus().log.count("cuStreamSynchronize")


GRADS = [
    ("float32", {"combiner": "mean"}),
    ("float32", {"combiner": "sqrtn", "use_sparse_weights": True, "max_norm": 1.5}),
    ("bfloat16", {"combiner": "mean", "use_sparse_weights": True, "default_id": 1}),
]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("stored", "attrs"), GRADS)
def test_gradient_by_distinct_id(stored: str, attrs: dict[str, Any], shards: int) -> None:
    draw, count, batch, unique = np.random.default_rng(5), 20, 6, 7
    indices = np.stack([draw.integers(0, batch, count), draw.integers(0, 9, count)], 1)
    unique_idxs = draw.integers(0, unique, count).astype(np.int32)
    owners = np.arange(unique) % shards
    pairs = np.stack([owners, np.arange(unique) // shards], 1).astype(np.int32)
    parts = [table(int((owners == one).sum()), 5, stored, one) for one in range(shards)]
    weighted = "use_sparse_weights" in attrs
    weights = tf.cast(draw.integers(-1, 3, count if weighted else 1), stored)

    def grad(*given: Any) -> Any:
        return ops.fused_embedding_sparse_post_look_up_v2_grad(
            top_grad=given[0],
            emb_shards=list(given[1 : 1 + shards]),
            partition_permutation=given[1 + shards],
            feature_nums=np.zeros(batch, np.int32),
            indices_before_unique=given[2 + shards],
            unique_idxs=given[3 + shards],
            is_row_empty=given[4 + shards],
            sp_weights_values=given[5 + shards],
            fill_empty_row=True,
            **attrs,
        )

    empty = np.arange(batch) == 3
    given = [table(batch, 5, stored, 9), *parts, pairs, indices, unique_idxs, empty, weights]
    gpus().log.clear()
    found = on_gpu(grad, *given)
    assert waits() == 0
    same(tf.nest.flatten(found), tf.nest.flatten(grad(*given)))


@pytest.mark.parametrize("sizes", [[12], [5, 0, 9]])
@pytest.mark.parametrize(("stored", "attrs"), GRADS)
def test_gradient_by_entry(stored: str, attrs: dict[str, Any], sizes: list[int]) -> None:
    draw, batch, shards = np.random.default_rng(6), 6, len(sizes)
    indices = [np.stack([draw.integers(0, batch, n), draw.integers(-3, 9, n)], 1) for n in sizes]
    weighted = "use_sparse_weights" in attrs
    weights = [tf.cast(draw.integers(-1, 3, n if weighted else 1), stored) for n in sizes]

    def grad(*given: Any) -> Any:
        parts = [list(given[1 + k * shards : 1 + (k + 1) * shards]) for k in range(3)]
        return ops.fused_embedding_sparse_post_look_up_grad(
            top_grad=given[0],
            emb_shards=parts[0],
            partitioned_indices=parts[1],
            feature_nums=np.zeros(batch, np.int32),
            row_empty_and_invalid_flags=given[-1],
            partitioned_weights=parts[2],
            **attrs,
        )

    rows = [table(n, 5, stored, k) for k, n in enumerate(sizes)]
    flags = (np.arange(batch + 20) == 1).astype(np.int32)
    given = [table(batch, 5, stored, 9), *rows, *indices, *weights, flags]
    gpus().log.clear()
    found = on_gpu(grad, *given)
    assert waits() == int(shards > 1)
    same(tf.nest.flatten(found), tf.nest.flatten(grad(*given)))


def test_weights_of_another_dtype_are_refused() -> None:
    def grad(top: Any, rows: Any, weights: Any) -> Any:
        return ops.fused_embedding_sparse_post_look_up_v2_grad(
            top_grad=top,
            emb_shards=[rows],
            partition_permutation=np.zeros((1, 2), np.int32),
            feature_nums=np.ones(1, np.int32),
            indices_before_unique=np.zeros((1, 2), np.int64),
            unique_idxs=np.zeros(1, np.int32),
            is_row_empty=[False],
            sp_weights_values=weights,
            use_sparse_weights=True,
        )

    given = table(1, 4, "float32"), table(1, 4, "float32"), np.ones(1, np.float64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must be of the dtype of"):
        on_gpu(grad, *given)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "attrs",
    [
        {"prune": True, "fill_empty_row": True, "default_id": 4},
        {"use_ignored_id": True, "ignored_id": 0, "column_stride": 10, "num_buckets": 25},
    ],
)
def test_dense_ids(attrs: dict[str, Any], dtype: Any) -> None:
    ids = np.random.default_rng(3).integers(-2, 9, (7, 3)).astype(dtype)
    ids[2] = -1

    def prune(ids: Any) -> Any:
        return ops.prune_dense_and_fill_empty_rows(dense_ids=ids, Tid=tf.int64, **attrs)

    gpus().log.clear()
    found = on_gpu(prune, ids)
    assert waits() == 1
    same(found, prune(ids))


def test_every_op_has_kernels_for_gpus() -> None:
    # What optimizers do to tables is fused on CPUs alone, where embedding variables and stores are.
    without = [spec.name for spec in ops.SPECS if "GPU" not in spec.kernels]
    names = [spec.name for spec in ops.SPECS]
    grouped = [f"GroupedKeyedEmbedding{name}" for name in ("Lookup", "PreLookUp")]
    # Tables that are beside ops on a GPU are gathered from there by stock's.
    grouped.append("GroupedEmbeddingGather")
    assert sorted(without) == sorted(grouped + names[names.index("FusedEmbeddingUpdate") :])
    assert len(without) == 14
