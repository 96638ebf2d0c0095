"""The lookup by v2 ops: ids made unique, split over the shards and gathered once each."""

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
    weight_values = tf.ones([1], dtype) if weights is None else weights
    if options.row_count == "last_row":
        # Nothing to prune or fill, and rows may exceed the dense shape, which is not read.
        values, indices = ids.values, ids.indices
        is_row_empty = tf.zeros([0], tf.bool)
    else:
        values, indices, weight_values, is_row_empty = ops.prune_invalid_and_fill_empty_rows(
            sp_values=ids.values,
            sp_indices=ids.indices,
            sp_dense_shape=ids.dense_shape,
            sp_weights_values=weight_values,
            fill_empty_row=options.fill_empty_row,
            prune=options.prune,
            default_id=options.default_id_attr,
            use_sparse_weights=weights is not None,
            prune_sparse_weights=weights is not None and options.combiner != "sum",
        )
    unique = ops.unique_with_counts_v3(input=values)
    limit, max_norm = options.split_max_norm(dtype)
    rows, permutation = _gather(shards, unique, options.partition_strategy, limit)
    return ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=rows,
        partition_permutation=permutation,
        sp_dense_shape=ids.dense_shape,
        indices_before_unique=indices,
        is_row_empty=is_row_empty,
        unique_idxs=unique.unique_idxs,
        sp_weights_values=weight_values,
        fill_empty_row=options.fill_empty_row,
        default_id=options.default_id_attr,
        combiner=options.combiner,
        max_norm=max_norm,
        use_sparse_weights=weights is not None,
        row_count=options.row_count,
    ).emb_vectors


def _gather(
    shards: list[Any], unique: Any, strategy: str, max_norm: float | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The rows of distinct ids, each shard's gathered beside it, and the permutation."""
    if len(shards) == 1:
        rows = gather_rows(shards[0], unique.unique_keys, lambda: unique.unique_counts, max_norm)
        return [rows], tf.zeros([1, 2], tf.int32)
    parts = ops.partition_with_permutation(
        input=unique.unique_keys,
        partition_shapes=[shard_shape(shard) for shard in shards],
        partition_strategy=strategy,
    )
    rows = [
        tf.nn.embedding_lookup(shard, part, max_norm=max_norm)
        for shard, part in zip(shards, parts.partitioned_values, strict=True)
    ]
    return rows, parts.partition_permutation
