"""Embedding lookups of sparse ids, built from the fused ops around one stock gather per shard."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.variables import PartitionedVariable

from fusion import ops
from fusion.ops.common import COMBINERS, FLOATS, IDS

_STRATEGIES = ("div", "mod")

#: The families of fused ops.
VERSIONS = ("v2",)

#: Value of the ops' default_id and max_norm attrs that means "none".
_NONE = -1


def fused_safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: tf.SparseTensor,
    sparse_weights: tf.SparseTensor | tf.Tensor | None = None,
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
      embedding_weights: the table [rows, D], float32 or float64: a Variable or Tensor, a list of
        either (shards by rows), a v1 `PartitionedVariable` or a `ShardedVariable`.
      sparse_ids: int32 or int64 `SparseTensor` of shape [d0, ..., dn-1, any].
      sparse_weights: weights of the ids, in the same order, of the table's dtype: a
        `SparseTensor`, or a `Tensor` [nnz].
      combiner: "sum", "mean" (also None) or "sqrtn".
      default_id: id that rows without entries get, >= 0.
      name: name of the operation.
      partition_strategy: how rows are split over shards, "div" (also None) or "mod".
      max_norm: limit of the L2 norm of each embedding before it is combined; < 0 acts as 0.
      prune: whether to drop invalid entries.
      blocknums: not supported.
      fusion_version: the family of fused ops to use, "v2".

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
        combiner, partition_strategy, max_norm, default_id, prune, fill_empty_row=True
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


def fused_embedding_lookup_sparse_v2(
    params: Any,
    sp_ids: tf.SparseTensor,
    sparse_weights: tf.SparseTensor | tf.Tensor | None = None,
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
        combiner, partition_strategy, max_norm, default_id, prune, fill_empty_row
    )
    with tf.name_scope(name or "fused_embedding_lookup_sparse"):
        return lookup(params, sp_ids, sparse_weights, options)


def _check_blocknums(blocknums: Any) -> None:
    if blocknums is not None:
        raise NotImplementedError(f"blocknums is not supported, got {blocknums!r}")


@dataclass(frozen=True)
class LookupOptions:
    """What a lookup does with the ids; all values are valid."""

    combiner: str = "mean"
    partition_strategy: str = "div"
    max_norm: float | None = None
    default_id: int | None = None
    prune: bool = True
    fill_empty_row: bool = True
    row_count: str = "dense_shape"

    @classmethod
    def checked(
        cls,
        combiner: str | None,
        partition_strategy: str | None,
        max_norm: float | None,
        default_id: int | None,
        prune: bool,
        fill_empty_row: bool,
    ) -> LookupOptions:
        """The options as a user gives them.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
        """
        combiner = "mean" if combiner is None else combiner
        if combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {COMBINERS}, got {combiner!r}")
        strategy = "div" if partition_strategy is None else partition_strategy
        if strategy not in _STRATEGIES:
            raise ValueError(f"partition_strategy must be one of {_STRATEGIES}, got {strategy!r}")
        if default_id is not None:
            try:
                default_id = operator.index(default_id)
            except TypeError:
                raise TypeError(f"default_id must be an integer, got {default_id!r}") from None
            if default_id < 0:
                raise ValueError(f"default_id must not be negative, got {default_id}")
        if max_norm is not None:
            max_norm = max(_number(max_norm), 0.0)
        return cls(combiner, strategy, max_norm, default_id, bool(prune), bool(fill_empty_row))

    def until_last_row(self) -> LookupOptions:
        """The same for a result that stops at the last row with an entry, as stock's does."""
        return replace(self, row_count="last_row")


def _number(max_norm: Any) -> float:
    """A norm as a number; NaN is none."""
    given = tf.get_static_value(max_norm)
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"max_norm must be a number, got {max_norm!r}")
    return number


def lookup(
    params: Any,
    sp_ids: tf.SparseTensor,
    sparse_weights: tf.SparseTensor | tf.Tensor | None,
    options: LookupOptions,
    params_name: str = "params",
    ids_name: str = "sp_ids",
) -> tf.Tensor:
    """The v2 lookup; see `fused_embedding_lookup_sparse_v2`. Names are for error messages."""
    shards = _as_shards(params, params_name)
    _check_ids(sp_ids, options, ids_name)
    weights = _weight_values(sparse_weights, shards[0].dtype)
    original_shape = sp_ids.dense_shape
    if options.row_count == "last_row":
        return _lookup_rows(shards, _by_first_dimension(sp_ids), weights, options)
    flat = _flatten(sp_ids)
    result = _lookup_rows(shards, flat, weights, options)
    return _unflatten(result, original_shape)


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
        partition_shapes=[_shape(shard) for shard in shards],
        partition_strategy=strategy,
    )
    rows = [
        tf.nn.embedding_lookup(shard, part, max_norm=max_norm)
        for shard, part in zip(shards, parts.partitioned_values, strict=True)
    ]
    return rows, parts.partition_permutation


def _shape(shard: Any) -> tf.Tensor:
    """The shape of a table, int64 [2], without reading a variable."""
    if shard.shape.is_fully_defined():
        return tf.constant(shard.shape.as_list(), tf.int64)
    if hasattr(shard, "handle"):
        return tf.raw_ops.VariableShape(input=shard.handle, out_type=tf.int64)
    return tf.shape(shard, out_type=tf.int64)


def _as_shards(params: Any, name: str) -> list[Any]:
    """The shards of a table, each a Variable or Tensor of rank 2 and one dtype."""
    if params is None:
        raise ValueError(f"{name} must be given, got None")
    if isinstance(params, PartitionedVariable):
        params = list(params)
    if hasattr(params, "variables") and not isinstance(params, tf.Variable):
        params = list(params.variables)  # tf.distribute's ShardedVariable
    if not isinstance(params, list | tuple):
        params = [params]
    shards = [_as_table(shard, name) for shard in params]
    if not shards:
        raise ValueError(f"{name} must not be empty")
    first = shards[0]
    for shard in shards:
        if shard.dtype.base_dtype != first.dtype.base_dtype:
            raise ValueError(
                f"{name} must have one dtype, got {first.dtype.name} and {shard.dtype.name}"
            )
        if shard.shape.rank not in (None, 2):
            raise ValueError(f"{name} must have rank 2, got shape {shard.shape}")
        if not shard.shape[1:].is_compatible_with(first.shape[1:]):
            raise ValueError(f"{name} must have equal rows, got {first.shape} and {shard.shape}")
    if first.dtype.base_dtype.name not in FLOATS:
        raise TypeError(f"{name} must be {' or '.join(FLOATS)}, got {first.dtype.name}")
    return shards


def _as_table(table: Any, name: str) -> Any:
    """`table` as something to gather from: variables stay variables."""
    if isinstance(table, tf.Variable):
        return table
    inner = getattr(table, "value", None)
    if isinstance(inner, tf.Variable):
        return inner  # a Keras 3 variable holds a tf.Variable
    return tf.convert_to_tensor(table, name=name)


def _check_ids(sp_ids: Any, options: LookupOptions, name: str) -> None:
    if not isinstance(sp_ids, tf.SparseTensor):
        raise TypeError(f"{name} must be a SparseTensor, got {type(sp_ids).__name__}: {sp_ids!r}")
    if sp_ids.dtype.name not in IDS:
        raise TypeError(f"{name} must be {' or '.join(IDS)}, got {sp_ids.dtype.name}")
    if options.default_id is not None and options.default_id > sp_ids.dtype.max:
        raise ValueError(
            f"default_id must fit the ids' {sp_ids.dtype.name}, got {options.default_id}"
        )
    shape = tf.get_static_value(sp_ids.dense_shape)
    if shape is not None and np.any(shape < 0):
        raise ValueError(f"{name} has a negative dense_shape: {shape.tolist()}")


def _weight_values(weights: Any, dtype: tf.DType) -> tf.Tensor | None:
    """The weights as a tensor [nnz] of the table's dtype."""
    if weights is None:
        return None
    values = weights.values if isinstance(weights, tf.SparseTensor) else weights
    if not hasattr(values, "dtype"):
        values = tf.convert_to_tensor(values, dtype)
    values = tf.convert_to_tensor(values)
    if values.dtype != dtype.base_dtype:
        raise ValueError(
            f"sparse_weights must have the table's dtype {dtype.base_dtype.name}, "
            f"got {values.dtype.name}"
        )
    if values.shape.rank not in (None, 1):
        raise ValueError(f"sparse_weights must have rank 1, got shape {values.shape}")
    return values


def _by_first_dimension(sp_ids: tf.SparseTensor) -> tf.SparseTensor:
    """The ids as a matrix with their first index as row, as stock's plain lookup reads them."""
    if sp_ids.dense_shape.shape[0] == 2:
        return sp_ids
    rows = sp_ids.indices[:, :1]
    shape = tf.concat([sp_ids.dense_shape[:1], [1]], 0)
    return tf.SparseTensor(tf.concat([rows, tf.zeros_like(rows)], 1), sp_ids.values, shape)


def _flatten(sp_ids: tf.SparseTensor) -> tf.SparseTensor:
    """The ids with all dimensions but the last flattened to rows."""
    if sp_ids.dense_shape.shape[0] == 2:
        return sp_ids
    shape = sp_ids.dense_shape
    rows = tf.reduce_prod(shape[:-1], keepdims=True)
    return tf.sparse.reshape(sp_ids, tf.concat([rows, shape[-1:]], 0))


def _unflatten(result: tf.Tensor, original_shape: tf.Tensor) -> tf.Tensor:
    """Rows back to the ids' shape, less its last dimension, and all that is known of it."""
    rank = original_shape.shape[0]
    dim = result.shape[1]
    if rank != 2:
        outer = tf.cast(original_shape[:-1], tf.int32)
        result = tf.reshape(result, tf.concat([outer, tf.shape(result)[1:]], 0))
    if rank is not None:
        known: Sequence[Any] | None = tf.get_static_value(original_shape)
        outer_dims = [None] * (rank - 1) if known is None else [int(d) for d in known[:-1]]
        result.set_shape([*outer_dims, dim])
    return result
