"""Dropping invalid entries of a batch of sparse ids, and filling the rows left empty."""

from __future__ import annotations

from fusion.runtime.jit import Array, jit


@jit
def _keeps(k: int, values: Array, weights: Array, prune: bool, prune_weights: bool) -> bool:
    # A NaN weight is not > 0: it is dropped, as stock TensorFlow does.
    return not prune or (values[k] >= 0 and (not prune_weights or weights[k] > 0))


@jit
def mark_rows(
    values: Array,
    rows: Array,
    weights: Array,
    prune: bool,
    prune_weights: bool,
    is_row_empty: Array,
) -> int:
    """Marks the rows that keep no entry and counts the entries kept.

    Args:
      values: ids [nnz].
      rows: int64 [nnz, 2]; column 0 is the row of each entry.
      weights: [nnz], read only if `prune_weights`.
      prune, prune_weights: whether to drop ids < 0, and then also weights that are not > 0.
      is_row_empty: out, bool [B].

    Returns:
      The number of entries kept, or -1 - k if kept entry k has a row outside [0, B).
    """
    is_row_empty[:] = True
    kept = 0
    for k in range(values.shape[0]):
        if _keeps(k, values, weights, prune, prune_weights):
            row = rows[k, 0]
            if row < 0 or row >= is_row_empty.shape[0]:
                return -1 - k
            is_row_empty[row] = False
            kept += 1
    return kept


@jit
def count_true(flags: Array) -> int:
    """The number of true elements of a bool array."""
    count = 0
    for k in range(flags.shape[0]):
        count += flags[k]
    return count


@jit
def copy_kept(
    values: Array,
    rows: Array,
    weights: Array,
    prune: bool,
    prune_weights: bool,
    out_values: Array,
    out_rows: Array,
    kept: Array,
) -> int:
    """Copies the entries kept, in order; `kept` [m] gets the place that each came from.

    Returns:
      The number of entries copied.
    """
    count = 0
    for k in range(values.shape[0]):
        if _keeps(k, values, weights, prune, prune_weights):
            out_values[count] = values[k]
            out_rows[count, 0] = rows[k, 0]
            out_rows[count, 1] = rows[k, 1]
            kept[count] = k
            count += 1
    return count


@jit
def fill_rows(
    is_row_empty: Array, first: int, fill_id: int, out_values: Array, out_rows: Array
) -> None:
    """Appends one entry with id `fill_id` per empty row, rows ascending, from place `first`."""
    for row in range(is_row_empty.shape[0]):
        if is_row_empty[row]:
            out_values[first] = fill_id
            out_rows[first, 0] = row
            out_rows[first, 1] = 0
            first += 1
