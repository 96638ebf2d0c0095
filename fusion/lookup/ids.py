"""Ids and weights as the fused ops take them: a matrix of ids, and a vector of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from fusion.lookup.options import LookupOptions
from fusion.schema.attributes import IDS

#: What ids and weights may be; weights pair with ids by position.
Ids: TypeAlias = tf.SparseTensor | tf.RaggedTensor
Weights: TypeAlias = tf.SparseTensor | tf.RaggedTensor | tf.Tensor


def check_ids(ids: Any, options: LookupOptions, name: str) -> None:
    """Checks what is known of ids when the graph is built.

    Raises:
      TypeError, ValueError: naming the argument, for ids that no lookup takes.
    """
    if not isinstance(ids, tf.SparseTensor | tf.RaggedTensor):
        raise TypeError(
            f"{name} must be a SparseTensor or a RaggedTensor, got {type(ids).__name__}: {ids!r}"
        )
    check_id_dtype(ids.dtype, name)
    if options.default_id is not None and options.default_id > ids.dtype.max:
        raise ValueError(f"default_id must fit the ids' {ids.dtype.name}, got {options.default_id}")
    if isinstance(ids, tf.RaggedTensor):
        if ids.ragged_rank != 1 or ids.flat_values.shape.rank not in (None, 1):
            raise ValueError(f"{name} must have rank 2 if it is ragged, got shape {ids.shape}")
        return
    shape = tf.get_static_value(ids.dense_shape)
    if shape is not None and np.any(shape < 0):
        raise ValueError(f"{name} has a negative dense_shape: {shape.tolist()}")


def check_id_dtype(dtype: tf.DType, name: str) -> None:
    """Checks that ids are integers, and raises a TypeError that names the argument."""
    if dtype.name not in IDS:
        raise TypeError(f"{name} must be {' or '.join(IDS)}, got {dtype.name}")


def as_sparse(ids: Any, options: LookupOptions, name: str) -> tf.SparseTensor:
    """The ids, checked by `check_ids`; those of a RaggedTensor with its rows."""
    check_ids(ids, options, name)
    return ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids


def weight_values(weights: Any, dtype: tf.DType) -> tf.Tensor | None:
    """The weights as a tensor [nnz] of the table's dtype."""
    if weights is None:
        return None
    values = weights.values if isinstance(weights, tf.SparseTensor | tf.RaggedTensor) else weights
    if isinstance(values, tf.RaggedTensor):
        raise ValueError(f"sparse_weights must have rank 2 if ragged, got shape {weights.shape}")
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


def rank_of(sp_ids: tf.SparseTensor) -> int | None:
    """The static rank; also where programs of TensorFlow 1 have sizes as `Dimension`s."""
    rank: int | None = sp_ids.dense_shape.shape.num_elements()
    return rank


def by_first_dimension(sp_ids: tf.SparseTensor) -> tf.SparseTensor:
    """The ids as a matrix with their first index as row, as stock's plain lookup reads them."""
    if rank_of(sp_ids) == 2:
        return sp_ids
    rows = sp_ids.indices[:, :1]
    shape = tf.concat([sp_ids.dense_shape[:1], [1]], 0)
    return tf.SparseTensor(tf.concat([rows, tf.zeros_like(rows)], 1), sp_ids.values, shape)


def flatten(sp_ids: tf.SparseTensor) -> tf.SparseTensor:
    """The ids with all dimensions but the last flattened to rows."""
    if rank_of(sp_ids) == 2:
        return sp_ids
    shape = sp_ids.dense_shape
    rows = tf.reduce_prod(shape[:-1], keepdims=True)
    return tf.sparse.reshape(sp_ids, tf.concat([rows, shape[-1:]], 0))


def unflatten(result: tf.Tensor, sp_ids: tf.SparseTensor) -> tf.Tensor:
    """Rows back to the ids' shape, less its last dimension, and all that is known of it."""
    rank, dim = rank_of(sp_ids), result.shape[1]
    if rank != 2:
        outer = tf.cast(sp_ids.dense_shape[:-1], tf.int32)
        result = tf.reshape(result, tf.concat([outer, tf.shape(result)[1:]], 0))
    if rank is not None:
        known: Sequence[Any] | None = tf.get_static_value(sp_ids.dense_shape)
        outer_dims = [None] * (rank - 1) if known is None else [int(d) for d in known[:-1]]
        result.set_shape([*outer_dims, dim])
    return result
