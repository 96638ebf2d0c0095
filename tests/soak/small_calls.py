"""Small calls of our ops and lookups, and the same of stock TensorFlow's, to be made many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from fusion import ops
from fusion.lookup import VERSIONS
from tests.reference import sparse
from tests.soak.memory import Workload

Lookup = Callable[..., tf.Tensor]

#: How many calls `Workload.once` makes, and the function itself.
Calls = tuple[int, Callable[[], object]]

ROWS, DIM = 20, 8
LENGTHS = (2, 0, 1, 9)

#: Share of all calls that are of each kind; eager lookups are slow.
SHARES = {
    "eager ops": 0.4,
    "ops that fail": 0.2,
    "function": 0.2,
    "function with gradient": 0.1,
    "lookups that fail": 0.08,
    "eager lookup with gradient": 0.02,
}


def workloads(side: str) -> list[Workload]:
    """The kinds of calls of "ours" or "stock", named as in `SHARES`."""
    if side == "stock":
        lookups: list[Lookup] = [tf.nn.safe_embedding_lookup_sparse]
        eager, failing = _stock_ops, _failing_stock_ops
    else:
        lookups = [
            partial(fusion.fused_safe_embedding_lookup_sparse, fusion_version=version)
            for version in VERSIONS
        ]
        eager, failing = _ops, _failing_ops
    batch = Batch()
    functions = [_Functions(lookup, batch) for lookup in lookups]
    count = len(functions)
    once: list[Calls] = [
        eager(batch),
        _refused(failing),
        (count, lambda: [function.forward() for function in functions]),
        (count, lambda: [function.gradient() for function in functions]),
        _refused(lambda batch, bad: [batch.look_up(lookup, bad) for lookup in lookups]),
        (count, lambda: [function.eager_gradient() for function in functions]),
    ]
    return [Workload(name, *calls) for name, calls in zip(SHARES, once, strict=True)]


class Batch:
    """A small batch, as tensors, and a table in two shards."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        arrays = sparse(rng, LENGTHS, ROWS, negative=0.1)
        self.values, self.indices = tf.constant(arrays["values"]), tf.constant(arrays["indices"])
        self.dense_shape = tf.constant(arrays["dense_shape"])
        self.weights = tf.constant(arrays["weights"])
        table = rng.standard_normal((ROWS, DIM)).astype(np.float32)
        self.shards = [tf.Variable(table[: ROWS // 2]), tf.Variable(table[ROWS // 2 :])]
        self.shapes = [tf.constant([ROWS // 2, DIM], tf.int64)] * 2
        self.top_grad = tf.ones([len(LENGTHS), DIM])

    def look_up(self, lookup: Lookup, values: tf.Tensor) -> tf.Tensor:
        """A weighted, clipped lookup of ids [nnz]."""
        ids = tf.SparseTensor(self.indices, values, self.dense_shape)
        weights = tf.SparseTensor(self.indices, self.weights, self.dense_shape)
        return lookup(self.shards, ids, weights, default_id=3, max_norm=1.0)


class _Functions:
    """A lookup as concrete functions, and in eager mode."""

    def __init__(self, lookup: Lookup, batch: Batch) -> None:
        def gradient(values: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(batch.weights)
                loss = tf.reduce_sum(batch.look_up(lookup, values))
            slices = tape.gradient(loss, [*batch.shards, batch.weights])
            return [tf.convert_to_tensor(part) for part in slices]

        forward = tf.function(lambda values: batch.look_up(lookup, values))
        spec = tf.TensorSpec([None], tf.int64)
        forward, backward = (
            function.get_concrete_function(spec) for function in (forward, tf.function(gradient))
        )
        self.forward = lambda: forward(batch.values)
        self.gradient = lambda: backward(batch.values)
        self.eager_gradient = lambda: gradient(batch.values)


def _refused(build: Callable[[Batch, tf.Tensor], Sequence[Any]]) -> Calls:
    """Calls that fail: `build` makes each from a batch and from numbers [nnz] that are too large.

    They are made in a session. Outside of one, TensorFlow keeps two Python objects and the text of
    every error for ever, 700 bytes or more, whichever op it is of.
    """
    with tf.Graph().as_default() as graph:
        batch = Batch()
        bad = tf.compat.v1.placeholder(tf.int64, [None])
        session = tf.compat.v1.Session(graph=graph)
        calls = [session.make_callable(result, [bad]) for result in build(batch, bad)]
        session.run([shard.initializer for shard in batch.shards])
        numbers = session.run(batch.values) + ROWS

    def once() -> None:
        for call in calls:
            try:
                call(numbers)
            except tf.errors.InvalidArgumentError:
                continue
            raise AssertionError("a bad call succeeded")

    return len(calls), once


def _ops(batch: Batch) -> Calls:
    """Every fused op, forward and backward."""

    def once() -> object:
        pruned = ops.prune_invalid_and_fill_empty_rows(
            sp_values=batch.values,
            sp_indices=batch.indices,
            sp_dense_shape=batch.dense_shape,
            sp_weights_values=batch.weights,
            fill_empty_row=True,
            prune=True,
            use_sparse_weights=True,
        )
        unique = ops.unique_with_counts_v3(input=pruned.sp_values_out)
        parts = ops.partition_with_permutation(
            input=unique.unique_keys, partition_shapes=batch.shapes
        )
        common = {
            "emb_shards": [
                tf.gather(shard, part)
                for shard, part in zip(batch.shards, parts.partitioned_values, strict=True)
            ],
            "partition_permutation": parts.partition_permutation,
            "indices_before_unique": pruned.sp_indices_out,
            "is_row_empty": pruned.is_row_empty,
            "unique_idxs": unique.unique_idxs,
            "sp_weights_values": pruned.sp_weights_values_out,
            "use_sparse_weights": True,
            "max_norm": 1.0,
        }
        result = ops.fused_embedding_sparse_post_look_up_v2(
            sp_dense_shape=batch.dense_shape, **common
        )
        return ops.fused_embedding_sparse_post_look_up_v2_grad(
            top_grad=batch.top_grad, feature_nums=result.feature_nums, **common
        )

    return 5, once


def _failing_ops(batch: Batch, bad: tf.Tensor) -> Sequence[Any]:
    """Every fused op that can fail, each after it has allocated something."""
    common = {
        "emb_shards": [tf.ones([3, DIM]), tf.ones([2, DIM])],
        "partition_permutation": tf.constant([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]),
        "indices_before_unique": batch.indices,
        "is_row_empty": tf.zeros([len(LENGTHS)], tf.bool),
        "unique_idxs": tf.cast(bad, tf.int32),
        "sp_weights_values": batch.weights,
        "use_sparse_weights": True,
    }
    return (
        ops.prune_invalid_and_fill_empty_rows(
            sp_values=batch.values,
            sp_indices=tf.stack([bad, bad], 1),
            sp_dense_shape=batch.dense_shape,
            sp_weights_values=batch.weights,
        ).sp_values_out,
        ops.partition_with_permutation(
            input=bad, partition_shapes=batch.shapes
        ).partition_permutation,
        ops.fused_embedding_sparse_post_look_up_v2(
            sp_dense_shape=batch.dense_shape, **common
        ).emb_vectors,
        ops.fused_embedding_sparse_post_look_up_v2_grad(
            top_grad=batch.top_grad, feature_nums=tf.ones([len(LENGTHS)], tf.int32), **common
        ).grad_weights,
    )


def _stock_ops(batch: Batch) -> Calls:
    def once() -> object:
        filled = tf.raw_ops.SparseFillEmptyRows(
            indices=batch.indices,
            values=batch.values,
            dense_shape=batch.dense_shape,
            default_value=tf.constant(0, tf.int64),
        )
        unique = tf.raw_ops.Unique(x=tf.maximum(filled.output_values, 0))
        rows = tf.gather(batch.shards[0], unique.y % (ROWS // 2))
        segments = filled.output_indices[:, 0]
        tf.raw_ops.SparseSegmentMean(data=rows, indices=unique.idx, segment_ids=segments)
        return tf.raw_ops.SparseSegmentMeanGrad(
            grad=batch.top_grad, indices=unique.idx, segment_ids=segments, output_dim0=ROWS
        )

    return 5, once


def _failing_stock_ops(batch: Batch, bad: tf.Tensor) -> Sequence[Any]:
    table, rows = tf.ones([3, DIM]), batch.indices[:, 0]
    return (
        tf.raw_ops.SparseFillEmptyRows(
            indices=tf.stack([bad, bad], 1),
            values=batch.values,
            dense_shape=batch.dense_shape,
            default_value=tf.constant(0, tf.int64),
        ).output_values,
        tf.gather(table, bad),
        tf.raw_ops.SparseSegmentMean(data=table, indices=bad, segment_ids=rows),
        tf.raw_ops.SparseSegmentMeanGrad(
            grad=batch.top_grad, indices=bad, segment_ids=rows, output_dim0=3
        ),
    )
