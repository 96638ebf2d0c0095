"""Dropping invalid entries of a batch of sparse ids, and filling the rows left empty."""

from __future__ import annotations

from typing import Any

from fusion.runtime.native.jit import Array, jit


@jit
def _keeps(k: int, values: Array, weights: Array, min_id: int, prune_weights: bool) -> bool:
    # A NaN weight is not > 0: it is dropped, as stock TensorFlow does.
    return values[k] >= min_id and (not prune_weights or weights[k] > 0)


@jit
def mark_rows(
    values: Array,
    rows: Array,
    weights: Array,
    min_id: int,
    prune_weights: bool,
    is_row_empty: Array,
) -> int:
    """Marks the rows that keep no entry and counts the entries kept.

    Args:
      values: ids [nnz].
      rows: int64 [nnz, 2]; column 0 is the row of each entry.
      weights: [nnz], read only if `prune_weights`.
      min_id: the smallest id that is kept.
      prune_weights: whether to drop weights that are not > 0.
      is_row_empty: out, bool [B].

    Returns:
      The number of entries kept, or -1 - k if kept entry k has a row outside [0, B).
    """
    is_row_empty[:] = True
    kept_count = 0
    for k in range(values.shape[0]):
        if _keeps(k, values, weights, min_id, prune_weights):
            row = rows[k, 0]
            if row < 0 or row >= is_row_empty.shape[0]:
                return -1 - k
            is_row_empty[row] = False
            kept_count += 1
    return kept_count


@jit
def count_true(flags: Array) -> int:
    """The number of true elements of a bool array."""
    count = 0
    for k in range(flags.shape[0]):
        count += flags[k]
    return count


@jit
def mark_entries(
    values: Array, weights: Array, min_id: int, prune_weights: bool, flags: Array
) -> None:
    """Sets flags [nnz] to 1 for each entry kept and to 0 for the others; see `mark_rows`."""
    for k in range(values.shape[0]):
        flags[k] = 1 if _keeps(k, values, weights, min_id, prune_weights) else 0


@jit
def list_entries(
    values: Array,
    weights: Array,
    min_id: int,
    prune_weights: bool,
    is_row_empty: Array,
    entries: Array,
) -> None:
    """Lists the entries kept, in order, and then those that fill empty rows, rows ascending.

    Args:
      values, weights, min_id, prune_weights, is_row_empty: see `mark_rows`.
      entries: out, int64 [m]: the index of an entry kept, or -1 - row. Rows are not filled if m is
        the number of entries kept.
    """
    count = 0
    for k in range(values.shape[0]):
        if _keeps(k, values, weights, min_id, prune_weights):
            entries[count] = k
            count += 1
    if count < entries.shape[0]:
        for row in range(is_row_empty.shape[0]):
            if is_row_empty[row]:
                entries[count] = -1 - row
                count += 1


@jit
def take_values(values: Array, entries: Array, filler: Any, out: Array) -> None:
    """Writes the value of each listed entry, `filler` for those that fill rows, to `out` [m]."""
    for k in range(entries.shape[0]):
        out[k] = values[entries[k]] if entries[k] >= 0 else filler


@jit
def take_indices(indices: Array, entries: Array, out: Array) -> None:
    """Writes the index of each listed entry, (row, 0) for those that fill rows, to `out` [m, 2]."""
    for k in range(entries.shape[0]):
        if entries[k] >= 0:
            out[k, 0] = indices[entries[k], 0]
            out[k, 1] = indices[entries[k], 1]
        else:
            out[k, 0] = -1 - entries[k]
            out[k, 1] = 0


@jit
def put_in_buckets(values: Array, count: int, default: int) -> None:
    """Replaces ids outside [0, count) by `default`, in place."""
    for k in range(values.shape[0]):
        if values[k] < 0 or values[k] >= count:
            values[k] = default
