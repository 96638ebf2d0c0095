"""The public functions that look up embeddings of one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from fusion.lookup import v1, v2
from fusion.lookup.ids import (
    Ids,
    Weights,
    as_sparse,
    by_first_dimension,
    flatten,
    unflatten,
    weight_values,
)
from fusion.lookup.options import VERSIONS, LookupOptions
from fusion.lookup.tables import as_shards
from fusion.tables.partitioned import KeyedTable

_FAMILIES = {"v1": v1.lookup_rows, "v2": v2.lookup_rows}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _as_written(function: _Function) -> _Function:
    """The function, which AutoGraph leaves as it is.

    Nothing here depends on the values of tensors. For AutoGraph to find that takes longer than to
    build the ops.
    """
    result: _Function = tf.autograph.experimental.do_not_convert(function)
    return result


@_as_written
def fused_safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Ids,
    sparse_weights: Weights | None = None,
    combiner: str | None = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str | None = "div",
    max_norm: float | None = None,
    prune: bool = True,
    blocknums: Any = None,
    fusion_version: str = "v2",
) -> tf.Tensor:
    """Looks up and combines embeddings; the fused `tf.nn.safe_embedding_lookup_sparse`.

    Ids < 0 are dropped, and with weights and a combiner other than "sum" entries whose weight is
    not > 0. A row left without entries gives zeros, or the embedding of `default_id`.

    Args:
      embedding_weights: the table [rows, D], float16, bfloat16, float32 or float64: a Variable or
        Tensor, a list of either (shards by rows), a v1 `PartitionedVariable` or a
        `ShardedVariable`. Half types are added up in float32 and rounded once.
      sparse_ids: int32 or int64 `SparseTensor` of shape [d0, ..., dn-1, any], or `RaggedTensor`
        of rank 2.
      sparse_weights: weights of the ids, in the same order, of the table's dtype: a
        `SparseTensor`, a `RaggedTensor`, or a `Tensor` [nnz].
      combiner: "sum", "mean" (also None) or "sqrtn".
      default_id: id that rows without entries get, >= 0.
      name: name of the operation.
      partition_strategy: how rows are split over shards, "div" (also None) or "mod".
      max_norm: limit of the L2 norm of each embedding before it is combined; < 0 acts as 0.
      prune: whether to drop invalid entries.
      blocknums: not supported.
      fusion_version: the family of fused ops to use, "v1", which runs on CPUs alone, or "v2".

    Returns:
      A tensor [d0, ..., dn-1, D] of the table's dtype. Its gradient with respect to the table is
      an `IndexedSlices` with distinct ids per shard.

    Raises:
      ValueError, TypeError: an argument that cannot be, seen when the graph is built.
      NotImplementedError: `blocknums` is given.
      tf.errors.InvalidArgumentError: at run time, an id outside the table, a row outside the
        dense shape, a negative dense shape or lengths that disagree.
    """
    if fusion_version not in VERSIONS:
        raise ValueError(f"fusion_version must be one of {VERSIONS}, got {fusion_version!r}")
    _check_blocknums(blocknums)
    options = LookupOptions.checked(
        combiner,
        partition_strategy,
        max_norm,
        default_id,
        prune,
        fill_empty_row=True,
        version=fusion_version,
    )
    with tf.name_scope(name or "fused_embedding_lookup_sparse"):
        return lookup(
            embedding_weights,
            sparse_ids,
            sparse_weights,
            options,
            params_name="embedding_weights",
            ids_name="sparse_ids",
        )


@_as_written
def fused_embedding_lookup_sparse(
    params: Any,
    sp_ids: Ids,
    sparse_weights: Weights | None = None,
    partition_strategy: str | None = None,
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    default_id: int | None = None,
    prune_invalid_ids: bool = False,
    fill_empty_row: bool = True,
    blocknums: Any = None,
) -> tf.Tensor:
    """Looks up and combines embeddings with the v1 family of fused ops.

    As `fused_embedding_lookup_sparse_v2`, whose `prune` is called `prune_invalid_ids` here; the
    results are the same.
    """
    _check_blocknums(blocknums)
    options = LookupOptions.checked(
        combiner, partition_strategy, max_norm, default_id, prune_invalid_ids, fill_empty_row, "v1"
    )
    with tf.name_scope(name or "fused_embedding_lookup_sparse"):
        return lookup(params, sp_ids, sparse_weights, options)


@_as_written
def fused_embedding_lookup_sparse_v2(
    params: Any,
    sp_ids: Ids,
    sparse_weights: Weights | None = None,
    partition_strategy: str | None = None,
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    default_id: int | None = None,
    prune: bool = False,
    fill_empty_row: bool = True,
    blocknums: Any = None,
) -> tf.Tensor:
    """Looks up and combines embeddings with the v2 family of fused ops.

    As `fused_safe_embedding_lookup_sparse`, with pruning and filling to choose. The result has
    one row per row of the dense shape (stock's `tf.nn.embedding_lookup_sparse` stops at the last
    row with an entry); rows without entries are zeros.

    Args:
      params: the table, see `fused_safe_embedding_lookup_sparse`.
      sp_ids: ids, likewise.
      sparse_weights: weights, likewise.
      partition_strategy: "div" (also None) or "mod".
      name: name of the operation.
      combiner: "sum", "mean" (also None) or "sqrtn".
      max_norm: limit of the norm of each embedding, or None.
      default_id: with `fill_empty_row`, the id that rows without entries get; None gives zeros.
      prune: whether to drop ids < 0 (and, unless the combiner is "sum", weights <= 0).
      fill_empty_row: whether `default_id` counts.
      blocknums: not supported.

    Returns:
      A tensor [d0, ..., dn-1, D] of the table's dtype.

    Raises:
      As `fused_safe_embedding_lookup_sparse`.
    """
    _check_blocknums(blocknums)
    options = LookupOptions.checked(
        combiner, partition_strategy, max_norm, default_id, prune, fill_empty_row, "v2"
    )
    with tf.name_scope(name or "fused_embedding_lookup_sparse"):
        return lookup(params, sp_ids, sparse_weights, options)


def _check_blocknums(blocknums: Any) -> None:
    if blocknums is not None:
        raise NotImplementedError(f"blocknums is not supported, got {blocknums!r}")


def lookup(
    params: Any,
    sp_ids: Ids,
    sparse_weights: Weights | None,
    options: LookupOptions,
    params_name: str = "params",
    ids_name: str = "sp_ids",
) -> tf.Tensor:
    """The lookup that `options` ask for. Names are for error messages."""
    shards = as_shards(params, params_name, getattr(sparse_weights, "dtype", None))
    sp_ids = as_sparse(sp_ids, options, ids_name)
    weights = weight_values(sparse_weights, shards[0].dtype)
    if isinstance(shards[0], KeyedTable):
        options = options.without_filled_rows()
    lookup_rows = _FAMILIES[options.version]
    if options.row_count == "last_row":
        return lookup_rows(shards, by_first_dimension(sp_ids), weights, options)
    result = lookup_rows(shards, flatten(sp_ids), weights, options)
    return unflatten(result, sp_ids)
