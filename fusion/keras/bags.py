"""Bags of ids as Keras layers are given them, and their combination by ops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from fusion.keras.tables import as_ids, gather
from fusion.lookup import Lookup, LookupOptions, single_lookup, trained_lookup
from fusion.ops.registered import DEVICES
from fusion.schema.columns import COLUMN_COMBINERS

COMBINERS = COLUMN_COMBINERS

_KINDS = (tf.SparseTensor, tf.RaggedTensor, tf.Tensor)


@dataclass(frozen=True)
class Bags:
    """A matrix of ids, and weights.

    Attributes:
      ids: `Tensor` [B, L], `RaggedTensor` [B, (L)] or `SparseTensor` [B, L], int32 or int64.
      weights: of the same kind, of the table's dtype, or None.
      name: of the layer.
    """

    ids: Any
    weights: Any
    name: str

    @classmethod
    def of(cls, ids: Any, weights: Any, dtype: tf.DType, name: str) -> Bags:
        """Bags of what a layer is called with.

        Raises:
          ValueError: ids or weights of another rank, or of two kinds.
        """
        ids = as_ids(_as_tensor(ids))
        if weights is not None:
            weights = tf.cast(_as_tensor(weights), dtype)
            if _kind(weights) is not _kind(ids):
                raise ValueError(
                    f"layer {name!r}: weights must be a {_kind(ids).__name__} as the ids, got a "
                    f"{_kind(weights).__name__}"
                )
            if not ids.shape.is_compatible_with(weights.shape):
                raise ValueError(
                    f"layer {name!r}: weights must have the shape of the ids, {ids.shape}, got "
                    f"{weights.shape}"
                )
        if isinstance(ids, tf.Tensor) and ids.shape.rank == 1:
            ids = tf.expand_dims(ids, 1)
            weights = None if weights is None else tf.expand_dims(weights, 1)
        if ids.shape.rank != 2:
            raise ValueError(f"layer {name!r}: ids must be [B, L] or [B], got shape {ids.shape}")
        return cls(ids, weights, name)

    def without(self, padding: int) -> Bags:
        """The entries whose id is not the padding; dense ones as ragged ones."""
        is_sparse = isinstance(self.ids, tf.SparseTensor)
        wanted = (self.ids.values if is_sparse else self.ids) != padding
        keep = tf.sparse.retain if is_sparse else tf.ragged.boolean_mask
        weights = None if self.weights is None else keep(self.weights, wanted)
        return Bags(keep(self.ids, wanted), weights, self.name)

    def ragged(self) -> Bags:
        """Dense bags as ragged ones, any others as they are."""
        if not isinstance(self.ids, tf.Tensor):
            return self
        shape = tf.shape(self.ids, out_type=tf.int64)
        splits = tf.range(shape[0] + 1) * shape[1]

        def rows(matrix: tf.Tensor) -> tf.RaggedTensor:
            flat = tf.reshape(matrix, [-1])
            return tf.RaggedTensor.from_row_splits(flat, splits, validate=False)

        return Bags(rows(self.ids), None if self.weights is None else rows(self.weights), self.name)


def combine(
    table: Any, bags: Bags, combiner: str, padding: int | None, *, training: bool
) -> tf.Tensor:
    """Combines the rows of each bag.

    Args:
      table: Variable or Tensor [rows, D].
      bags: ids and weights.
      combiner: one of COMBINERS; with "max" there are no weights.
      padding: an id that is skipped; None for none.
      training: whether to gather distinct ids, with a gradient by a fused op.

    Returns:
      [B, D] of the table's dtype; zeros where a bag is empty.

    Raises:
      tf.errors.InvalidArgumentError: at run time, an id outside the table.
    """
    if combiner == "max":
        return _largest(table, bags, padding, training=training)
    is_dense = isinstance(bags.ids, tf.Tensor) and bags.weights is None
    if padding is not None and not is_dense:
        bags = bags.without(padding)
    if not is_dense:
        bags = bags.ragged()
    options = LookupOptions(combiner, prune=False, fill_empty_row=False)
    ignored_id = padding if is_dense else None
    lookup = Lookup(table, bags.ids, bags.weights, options, bags.name, ignored_id)
    if training or not lookup.reads_table_well:
        return trained_lookup([lookup])
    return single_lookup(lookup)


def _largest(table: Any, bags: Bags, padding: int | None, *, training: bool) -> tf.Tensor:
    """The maxima of bags without weights; ops for training are stock ones."""
    options = LookupOptions("max", prune=False, fill_empty_row=False)
    lookup = Lookup(table, bags.ids, None, options, bags.name, sum_order="sequence")
    is_fused = not training and lookup.reads_table_well and DEVICES.home == "CPU"
    is_dense = isinstance(bags.ids, tf.Tensor) and not is_fused
    if is_dense and (padding is None or 0 <= padding < table.shape[0]):
        return _largest_along_axis(table, bags.ids, padding)
    ids = (bags if padding is None else bags.without(padding)).ragged().ids
    if isinstance(ids, tf.SparseTensor):
        values, rows, count = ids.values, ids.indices[:, 0], ids.dense_shape[0]
    else:
        values, rows, count = ids.flat_values, ids.value_rowids(), ids.nrows()
    if is_fused and isinstance(ids, tf.RaggedTensor):
        largest, has_ids = single_lookup(replace(lookup, ids=ids)), ids.row_lengths() > 0
    else:
        largest = tf.math.unsorted_segment_max(gather(table, values), rows, count)
        has_ids = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, count) > 0
    return tf.where(tf.expand_dims(has_ids, 1), largest, tf.zeros_like(largest))


def _largest_along_axis(table: Any, ids: tf.Tensor, padding: int | None) -> tf.Tensor:
    """The maxima of the rows of ids [B, L]; the padding, if any, is an id of the table."""
    rows = gather(table, ids)
    is_entry = tf.ones_like(ids, tf.bool) if padding is None else ids != padding
    if padding is not None:
        rows = tf.where(tf.expand_dims(is_entry, 2), rows, rows.dtype.min)
    largest = tf.reduce_max(rows, 1)
    has_ids = tf.reduce_any(is_entry, 1, keepdims=True)
    return tf.where(has_ids, largest, tf.zeros_like(largest))


def _as_tensor(value: Any) -> Any:
    return value if isinstance(value, _KINDS) else tf.convert_to_tensor(value)


def _kind(value: Any) -> type:
    return next(kind for kind in _KINDS if isinstance(value, kind))
