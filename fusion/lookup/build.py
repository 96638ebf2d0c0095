"""The graph of a lookup: fused ops around one stock gather per shard."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.lookup.ids import (
    Ids,
    Weights,
    as_sparse,
    by_first_dimension,
    flatten,
    unflatten,
    weight_values,
)
from fusion.lookup.options import LookupOptions
from fusion.lookup.tables import as_shards, shard_shape

#: Value of the ops' default_id and max_norm attrs that means "none".
_NONE = -1


def lookup(
    params: Any,
    sp_ids: Ids,
    sparse_weights: Weights | None,
    options: LookupOptions,
    params_name: str = "params",
    ids_name: str = "sp_ids",
) -> tf.Tensor:
    """The v2 lookup; see `fused_embedding_lookup_sparse_v2`. Names are for error messages."""
    shards = as_shards(params, params_name, getattr(sparse_weights, "dtype", None))
    sp_ids = as_sparse(sp_ids, options, ids_name)
    weights = weight_values(sparse_weights, shards[0].dtype)
    original_shape = sp_ids.dense_shape
    if options.row_count == "last_row":
        return _lookup_rows(shards, by_first_dimension(sp_ids), weights, options)
    flat = flatten(sp_ids)
    result = _lookup_rows(shards, flat, weights, options)
    return unflatten(result, original_shape)


def _lookup_rows(
    shards: list[Any], ids: tf.SparseTensor, weights: tf.Tensor | None, options: LookupOptions
) -> tf.Tensor:
    """The lookup of ids of rank 2."""
    dtype = shards[0].dtype.base_dtype
    weight_values = tf.ones([1], dtype) if weights is None else weights
    default_id = _NONE if options.default_id is None else options.default_id
    if options.row_count == "last_row":
        # Nothing to prune or fill, and rows may exceed the dense shape, which nobody looks at.
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
            default_id=default_id,
            use_sparse_weights=weights is not None,
            prune_sparse_weights=weights is not None and options.combiner != "sum",
        )
    unique = ops.unique_with_counts_v3(input=values)
    limit, max_norm = _split_max_norm(options.max_norm, dtype)
    rows, permutation = _gather(shards, unique.unique_keys, options.partition_strategy, limit)
    return ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=rows,
        partition_permutation=permutation,
        sp_dense_shape=ids.dense_shape,
        indices_before_unique=indices,
        is_row_empty=is_row_empty,
        unique_idxs=unique.unique_idxs,
        sp_weights_values=weight_values,
        fill_empty_row=options.fill_empty_row,
        default_id=default_id,
        combiner=options.combiner,
        max_norm=max_norm,
        use_sparse_weights=weights is not None,
        row_count=options.row_count,
    ).emb_vectors


def _split_max_norm(max_norm: float | None, dtype: tf.DType) -> tuple[float | None, float]:
    """The limit for stock's clipping and the one for the op's attr.

    Stock clips half types in their own arithmetic, where the square of a norm may overflow, and the
    op in float32: they are left to stock. So is a limit that would lose digits for a float64 table,
    since attrs are float32.
    """
    if max_norm is None:
        return None, float(_NONE)
    in_op = dtype in (tf.float32, tf.float64)
    if dtype == tf.float64:
        in_op = float(np.float32(max_norm)) == max_norm
    return (None, max_norm) if in_op else (max_norm, float(_NONE))


def _gather(
    shards: list[Any], keys: tf.Tensor, strategy: str, max_norm: float | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The rows of distinct ids, each shard's gathered beside it, and the permutation."""
    if len(shards) == 1:
        rows = tf.nn.embedding_lookup(shards[0], keys, max_norm=max_norm)
        return [rows], tf.zeros([1, 2], tf.int32)
    parts = ops.partition_with_permutation(
        input=keys,
        partition_shapes=[shard_shape(shard) for shard in shards],
        partition_strategy=strategy,
    )
    rows = [
        tf.nn.embedding_lookup(shard, part, max_norm=max_norm)
        for shard, part in zip(shards, parts.partitioned_values, strict=True)
    ]
    return rows, parts.partition_permutation
