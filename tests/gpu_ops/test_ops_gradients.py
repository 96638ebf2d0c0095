"""Gradients of the v2 family, dense ids and v1 lookups over the launcher, in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import ops
from fusion.ops.registered import SPECS
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
    # What optimizers do to tables is fused on CPUs alone, where embedding variables, stores and
    # strings are.
    without = [spec.name for spec in SPECS if "GPU" not in spec.kernels]
    names = [spec.name for spec in SPECS]
    grouped = [f"GroupedKeyedEmbedding{name}" for name in ("Lookup", "PreLookUp")]
    # Tables that are beside ops on a GPU are gathered from there by stock's.
    grouped.append("GroupedEmbeddingGather")
    family = [f"FusedEmbeddingSparse{name}" for name in ("PreLookUp", "PostLookUp")]
    v1 = [*family, "FusedEmbeddingSparsePostLookUpGrad"]
    assert sorted(without) == sorted(v1 + grouped + names[names.index("FusedEmbeddingUpdate") :])
    assert len(without) == 23


@pytest.mark.parametrize(("shards", "combiner"), [(1, "mean"), (3, "sqrtn")])
def test_a_v1_lookup_is_on_both_devices(shards: int, combiner: str) -> None:
    """The ops of the family are on the CPU, those of the distinct ids beside them on the GPU."""
    tables = [table(7, 4, "float32", shard) for shard in range(shards)]

    def trained(ids: Any, weights: Any, *tables: Any) -> Any:
        sparse = [tf.sparse.from_dense(matrix) for matrix in (ids, weights)]
        with tf.GradientTape() as tape:
            tape.watch(tables)
            rows = fusion.fused_embedding_lookup_sparse(
                list(tables), sparse[0], sparse_weights=sparse[1], combiner=combiner
            )
            loss = tf.reduce_sum(rows * rows)
        return [rows, *tf.nest.flatten(tape.gradient(loss, tables), expand_composites=True)]

    ids = tf.constant([[1, 6, 1], [0, 0, 0], [3, 2, 2], [5, 1, 0]], tf.int64)
    weights = tf.cast(ids > 0, tf.float32) * 0.7
    gpus().log.clear()
    found = on_gpu(trained, ids, weights, *tables)
    assert gpus().log.count("insert_ids") == shards
    same(found, trained(ids, weights, *tables))
