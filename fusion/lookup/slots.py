"""Lookups of slots, as HugeCTR's plugin for TensorFlow has them: several bags of keys in each row.

Keys are a tensor [B, slots, nnz], or the same as coordinates (COO) or with offsets (CSR) of
B * slots rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from fusion.distribute.sharded import Sharded
from fusion.lookup.functions import lookup
from fusion.lookup.grouped import Lookup
from fusion.lookup.ids import check_id_dtype
from fusion.lookup.many import lookups_apart, rows_here
from fusion.lookup.options import LookupOptions
from fusion.tables.arguments import integer

#: How keys are split over replicas: by key, or by slot.
MODES = ("distributed", "localized")


class Csr(NamedTuple):
    """Keys of rows, in row order.

    Attributes:
      row_offsets: where each row starts, and the last one ends, int64 [rows + 1].
      values: the keys [n].
      nnz: n, int64 [].
    """

    row_offsets: tf.Tensor
    values: tf.Tensor
    nnz: tf.Tensor


@tf.autograph.experimental.do_not_convert  # nothing here depends on the values of tensors
def slots_lookup(
    table: Any,
    keys: tf.Tensor | tf.RaggedTensor,
    combiner: str | None = "sum",
    invalid_key: int | None = -1,
    name: str | None = None,
) -> tf.Tensor:
    """Combines the embeddings of the keys of each slot.

    Args:
      table: for all slots: Variable or Tensor [rows, D], an `EmbeddingVariable`, a
        `fusion.distribute.ShardedTable` or `ShardedEmbeddingVariable`, or another table that
        `fused_safe_embedding_lookup_sparse` takes.
      keys: int32 or int64, `Tensor` [B, slots, nnz], or `RaggedTensor` [B, slots, (nnz)] with as
        many slots in each row (`uniform_row_length`).
      combiner: "sum", "mean" (also None) or "sqrtn".
      invalid_key: stands for no key in a Tensor; None if there is no such key.
      name: name of the operation.

    Returns:
      A tensor [B, slots, D] of the table's dtype; slots without keys are zeros. Its gradient with
      respect to the table is an `IndexedSlices` of distinct rows.

    Raises:
      ValueError, TypeError: naming the argument and what was given.
      tf.errors.InvalidArgumentError: at run time, a key outside the table.
    """
    with tf.name_scope(name or "slots_lookup"):
        if isinstance(keys, tf.RaggedTensor):
            slots = keys.uniform_row_length
            if keys.ragged_rank != 2 or slots is None or keys.flat_values.shape.rank != 1:
                raise ValueError(
                    "keys must be [B, slots, (nnz)] with as many slots in each row if they are "
                    f"ragged, got shape {keys.shape}"
                )
            return _combine(table, keys.values, slots, combiner, None)
        keys = tf.convert_to_tensor(keys)
        if keys.shape.rank != 3:
            raise ValueError(f"keys must be [B, slots, nnz], got shape {keys.shape}")
        slots, nnz = keys.shape[1], keys.shape[2]
        rows = tf.reshape(keys, [-1, tf.shape(keys)[2] if nnz is None else nnz])
        slots = tf.shape(keys)[1] if slots is None else slots
        result = _combine(table, rows, slots, combiner, invalid_key)
        result.set_shape([keys.shape[0], keys.shape[1], None])
        return result


def slots_lookup_coo(
    table: Any,
    row_indices: tf.Tensor,
    values: tf.Tensor,
    batch_size: Any,
    slot_num: int,
    combiner: str | None = "sum",
    name: str | None = None,
) -> tf.Tensor:
    """As `slots_lookup`, of keys as coordinates.

    Args:
      table, combiner, name: see `slots_lookup`.
      row_indices: int64 [2, n] of the keys' rows (B * slots of them, slots within samples), and of
        their places in these; rows ascend. See `slots_to_coo`.
      values: the keys, int32 or int64 [n].
      batch_size: B.
      slot_num: slots.
    """
    with tf.name_scope(name or "slots_lookup"):
        rows = tf.cast(batch_size, tf.int64) * slot_num
        width = tf.cast(tf.size(values), tf.int64)
        indices = tf.transpose(tf.cast(row_indices, tf.int64))
        sparse = tf.SparseTensor(indices, values, tf.stack([rows, width]))
        return _combine(table, sparse, slot_num, combiner, None)


def slots_lookup_csr(
    table: Any,
    row_offsets: tf.Tensor,
    values: tf.Tensor,
    slot_num: int,
    combiner: str | None = "sum",
    name: str | None = None,
) -> tf.Tensor:
    """As `slots_lookup`, of keys with offsets.

    Args:
      table, combiner, name: see `slots_lookup`.
      row_offsets: int32 or int64 [B * slots + 1], where the keys of each row start, and of the last
        one end.
      values: the keys, int32 or int64 [n].
      slot_num: slots.
    """
    with tf.name_scope(name or "slots_lookup"):
        ragged = tf.RaggedTensor.from_row_splits(values, tf.cast(row_offsets, tf.int64))
        return _combine(table, ragged, slot_num, combiner, None)


def slots_to_coo(keys: tf.Tensor, invalid_key: int = -1) -> tuple[tf.Tensor, tf.Tensor]:
    """Keys [B, slots, nnz] as coordinates: row_indices int64 [2, n], and values [n]."""
    keys = tf.convert_to_tensor(keys)
    rows = tf.reshape(keys, [-1, tf.shape(keys)[2]])
    indices = tf.where(rows != invalid_key)
    return tf.transpose(indices), tf.gather_nd(rows, indices)


def slots_to_csr(
    row_indices: tf.Tensor,
    values: tf.Tensor,
    batch_size: Any,
    slot_num: int,
    replica_count: int = 1,
    mode: str = "distributed",
) -> list[Csr]:
    """Keys as coordinates as those with offsets that each replica gets, by HugeCTR's rules.

    Args:
      row_indices, values, batch_size, slot_num: see `slots_lookup_coo`.
      replica_count: how many replicas there are, N.
      mode: "distributed": replica r gets all rows, with the keys whose key % N is r; "localized":
        the rows of slots whose slot % N is r.

    Returns:
      N items; of B * slots rows each, or of B * (slots of the replica).

    Raises:
      ValueError, TypeError: naming the argument and what was given.
    """
    integer("replica_count", replica_count)
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
    rows = tf.cast(row_indices[0], tf.int64)
    order = tf.argsort(rows, stable=True)
    rows, values = tf.gather(rows, order), tf.gather(values, order)
    batch, result = tf.cast(batch_size, tf.int64), []
    for replica in range(replica_count):
        if mode == "distributed":
            own, slots = values % replica_count == replica, slot_num
            own_rows = rows
        else:
            slots = len(range(replica, slot_num, replica_count))
            own = rows % slot_num % replica_count == replica
            own_rows = rows // slot_num * slots + rows % slot_num // replica_count
        own_rows = tf.boolean_mask(own_rows, own)
        ends = tf.range(batch * slots + 1)
        offsets = tf.searchsorted(own_rows, ends, out_type=tf.int64)
        own_values = tf.boolean_mask(values, own)
        result.append(Csr(offsets, own_values, tf.size(own_values, tf.int64)))
    return result


def _combine(
    table: Any, rows: Any, slots: Any, combiner: str | None, ignored_id: int | None
) -> tf.Tensor:
    """The results of rows of keys, [B, slots, D]."""
    check_id_dtype(rows.dtype, "keys")
    options = LookupOptions.checked(combiner, None, None, None, prune=False, fill_empty_row=False)
    if isinstance(table, Sharded):
        ((table, rows),) = rows_here([table], [_ragged(rows, ignored_id)])
    column = Lookup(table, rows, None, options, ignored_id=ignored_id)
    if column.is_groupable:
        (result,) = lookups_apart([column])
    else:
        result = lookup(table, _ragged(rows, ignored_id), None, options, "table", "keys")
    return tf.reshape(result, [-1, slots, result.shape[1]])


def _ragged(rows: Any, ignored_id: int | None) -> Any:
    """Rows of keys without the ignored id, which only a Tensor has."""
    if not isinstance(rows, tf.Tensor):
        return rows
    is_key = tf.ones_like(rows, tf.bool) if ignored_id is None else rows != ignored_id
    return tf.ragged.boolean_mask(rows, is_key)
