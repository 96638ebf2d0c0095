"""The lookup by v1 ops: ids split over the shards, each shard's made unique and gathered once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.lookup.options import LookupOptions
from fusion.lookup.tables import gather_rows, shard_shape


def lookup_rows(
    shards: list[Any], ids: tf.SparseTensor, weights: tf.Tensor | None, options: LookupOptions
) -> tf.Tensor:
    """The lookup of ids of rank 2."""
    dtype = shards[0].dtype.base_dtype
    parts = ops.fused_embedding_sparse_pre_look_up(
        partition_shapes=[shard_shape(shard) for shard in shards],
        sp_values=ids.values,
        sp_indices=ids.indices if len(shards) == 1 else _numbered(ids.indices),
        sp_dense_shape=ids.dense_shape,
        sp_weights_values=tf.ones([1], dtype) if weights is None else weights,
        fill_empty_row=options.fill_empty_row,
        prune_invalid_id=options.prune,
        default_id=options.default_id_attr,
        partition_strategy=options.partition_strategy,
        use_sparse_weights=weights is not None,
        prune_sparse_weights=weights is not None and options.combiner != "sum",
        row_count=options.row_count,
        # The gradients of equal ids are added up in this order, which is stock's.
        entry_order="row",
    )
    limit, max_norm = options.split_max_norm(dtype)
    rows = [
        _gather(shard, part, limit, weights is not None)
        for shard, part in zip(shards, parts.partitioned_values, strict=True)
    ]
    return ops.fused_embedding_sparse_post_look_up(
        emb_shards=rows,
        partitioned_indices=parts.partitioned_indices,
        sp_dense_shape=ids.dense_shape,
        row_empty_and_invalid_flags=parts.row_empty_and_invalid_flags,
        partitioned_values=parts.partitioned_values,
        partitioned_weights=parts.partitioned_weights,
        combiner=options.combiner,
        max_norm=max_norm,
        default_id=options.default_id_attr,
        use_sparse_weights=weights is not None,
        row_count=options.row_count,
    ).emb_vectors


def _numbered(indices: tf.Tensor) -> tf.Tensor:
    """The rows of entries, and their positions: stock adds up a row in the order of its entries.

    The columns would do for ids in canonical order, but lookups take any.
    """
    rows = indices[:, 0]
    return tf.stack([rows, _positions(rows)], axis=1)


def _positions(entries: tf.Tensor) -> tf.Tensor:
    """0, 1, ... int64 [n] for n entries."""
    return tf.range(tf.size(entries, tf.int64), dtype=tf.int64)


def _gather(shard: Any, ids: tf.Tensor, max_norm: float | None, weighted: bool) -> tf.Tensor:
    """The row of each id, from one gather of distinct ids beside the shard.

    The v2 op with one entry per row copies rows, and its gradient adds up those of equal ids in
    the order of the entries. That has a gradient in turn only with weights, here of one, just as
    the whole lookup.
    """
    unique = ops.unique_with_counts_v3(input=ids)
    rows = gather_rows(shard, unique.unique_keys, lambda: unique.unique_counts, max_norm)
    positions = _positions(ids)
    return ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=[rows],
        partition_permutation=tf.zeros([1, 2], tf.int32),
        sp_dense_shape=tf.zeros([2], tf.int64),
        indices_before_unique=tf.stack([positions, positions], axis=1),
        is_row_empty=tf.zeros([0], tf.bool),
        unique_idxs=unique.unique_idxs,
        sp_weights_values=tf.ones_like(ids if weighted else [0], rows.dtype),
        combiner="sum",
        use_sparse_weights=weighted,
        row_count="last_row",
    ).emb_vectors
