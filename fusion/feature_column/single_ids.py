"""Ids of dense and ragged features, without a sparse tensor; embeddings of one id per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.runtime.tensorflow.private import feature_column_v2 as stock

#: Columns that find their ids in a table of words.
VOCABULARIES = (stock.VocabularyListCategoricalColumn, stock.VocabularyFileCategoricalColumn)
#: Categorical columns that map each value by itself.
_BY_VALUE = (stock.IdentityCategoricalColumn, stock.HashedCategoricalColumn, *VOCABULARIES)

#: The value of a dense feature that means "missing", by dtype.
_MISSING: dict[tf.DType, Any] = {tf.int32: -1, tf.int64: -1, tf.string: ""}


def single_ids(column: Any, features: Any, state: Any) -> tf.Tensor | None:
    """The ids of a categorical column whose feature is dense with one value per row.

    Args:
      column: the categorical column.
      features: stock's transformation cache.
      state: what holds the column's lookup table.

    Returns:
      int64 [B], < 0 where a row has no valid id; None if the column or its feature is of another
      kind.

    Raises:
      ValueError: for a dtype that the column does not take, as from the column itself.
    """
    ids = dense_ids(column, features, state)
    return tf.reshape(ids, [-1]) if ids is not None and ids.shape[1] == 1 else None


def dense_ids(column: Any, features: Any, state: Any) -> tf.Tensor | None:
    """The ids of a categorical column whose feature is a dense matrix.

    Args, Raises: as `single_ids`.

    Returns:
      int64 [B, L], < 0 where there is no valid id; None if the column or its feature is of another
      kind.
    """
    if isinstance(column, stock.BucketizedColumn):
        return _buckets(column, features.get(column, state))
    if not isinstance(column, _BY_VALUE):
        return None
    feature = features.get(column.key, state)
    is_matrix = isinstance(feature, tf.Tensor) and feature.shape.rank == 2
    if not is_matrix or feature.dtype not in _MISSING:
        return None
    values = tf.reshape(feature, [-1])
    ids = _transformed(column, values, state)
    # Without a default, -1 stays -1.
    if not isinstance(column, stock.IdentityCategoricalColumn) or column.default_value is not None:
        ids = tf.where(values == _MISSING[feature.dtype], tf.constant(-1, tf.int64), ids)
    return tf.ensure_shape(tf.reshape(ids, tf.shape(feature)), feature.shape)


def ragged_ids(column: Any, features: Mapping[str, Any], state: Any) -> tf.RaggedTensor | None:
    """The ids of a categorical column whose feature is a matrix of ragged rows.

    Args:
      column: the categorical column.
      features: tensors by name.
      state: what holds the column's lookup table.

    Returns:
      int64 [B, (L)], < 0 where there is no valid id; None if the column or its feature is of
      another kind.

    Raises:
      ValueError: for a dtype that the column does not take, as from the column itself.
    """
    feature = features.get(column.key) if isinstance(column, _BY_VALUE) else None
    if not isinstance(feature, tf.RaggedTensor) or feature.shape.rank != 2:
        return None
    if feature.ragged_rank != 1:
        return None
    return feature.with_values(_transformed(column, feature.values, state))


def matrix_of_ids(
    column: Any, tensors: Mapping[str, Any], features: Any, state: Any
) -> tf.Tensor | tf.RaggedTensor | None:
    """The ids of a categorical column, of one kind or the other.

    Args:
      column: the categorical column.
      tensors: by name.
      features: stock's transformation cache of them.
      state: what holds the column's lookup table.

    Returns, Raises: as `ragged_ids` and `dense_ids`.
    """
    ids = ragged_ids(column, tensors, state)
    return dense_ids(column, features, state) if ids is None else ids


def _buckets(column: Any, buckets: tf.Tensor) -> tf.Tensor | None:
    """Ids of buckets: those of each number of a row come after those of the number before."""
    shape = column.source_column.shape
    if len(shape) > 1 or buckets.shape.rank != 2:
        return None
    first = tf.range(shape[0], dtype=buckets.dtype) * (len(column.boundaries) + 1)
    return tf.cast(buckets + first if shape[0] > 1 else buckets, tf.int64)


def _transformed(column: Any, values: tf.Tensor, state: Any) -> tf.Tensor:
    """The column's ids of values [B], missing ones treated as any other."""
    # The columns want a sparse tensor and compute on its values. The indices are not read: in a
    # graph they are not even computed.
    indices = tf.zeros(tf.stack([tf.size(values), 2]), tf.int64)
    sparse = tf.SparseTensor(indices, values, [1, 1])
    if isinstance(column, VOCABULARIES):
        return column._transform_input_tensor(sparse, state).values
    return column._transform_input_tensor(sparse).values


def embed(table: Any, ids: tf.Tensor, max_norm: float | None, fused: bool) -> tf.Tensor:
    """The embeddings of single ids, as `tf.nn.safe_embedding_lookup_sparse` gives them.

    Args:
      table: Variable or Tensor [rows, D].
      ids: int64 [B]; ids < 0 give zeros.
      max_norm: limit of the norm of each embedding, or None.
      fused: whether to use this package's ops.

    Returns:
      [B, D], of the table's dtype. The gradient of the table is an `IndexedSlices` with distinct
      ids; where ids are missing, row 0 is among them (without a share of theirs), as in stock.

    Raises:
      tf.errors.InvalidArgumentError: at run time, an id that is no row of the table.
    """
    clipped = tf.maximum(ids, 0)
    keys, index = ops.unique_with_counts_v3(input=clipped)[:2] if fused else tf.unique(clipped)
    vectors = tf.gather(tf.nn.embedding_lookup(table, keys, max_norm=max_norm), index)
    # The select of TensorFlow 1 takes a condition per row; its gradient is half as long.
    return tf.compat.v1.where(ids >= 0, vectors, tf.zeros_like(vectors))
