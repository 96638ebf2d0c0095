"""Listing the ids of a dense matrix as entries, and filling the rows left empty."""

from __future__ import annotations

from typing import Any, NamedTuple

from fusion.runtime.native.jit import Array, int64, jit


class DenseRules(NamedTuple):
    """The rules by which ids of a dense matrix become entries, in compiled code.

    Attributes:
      use_ignored, ignored: the id that stands for no entry, if there is one.
      stride: is added to an id once for each column on its left.
      buckets, bucket_default: ids outside [0, buckets) become the default, if `buckets` > 0.
      min_id: the smallest id that is kept.
    """

    use_ignored: Any
    ignored: Any
    stride: Any
    buckets: Any
    bucket_default: Any
    min_id: Any


@jit
def dense_id(value: int, column: int, rules: DenseRules, dtype: type) -> int:
    """The id of an entry for an id of a column, which is cast to `dtype` first."""
    number = int64(dtype(value)) + column * rules.stride
    if rules.buckets > 0 and (number < 0 or number >= rules.buckets):
        return rules.bucket_default
    return number


@jit
def keeps_dense(value: int, column: int, rules: DenseRules, dtype: type) -> bool:
    """Whether an id of a column is an entry."""
    if rules.use_ignored and value == rules.ignored:
        return False
    return dense_id(value, column, rules, dtype) >= rules.min_id


@jit
def mark_dense_rows(ids: Array, rules: DenseRules, dtype: type, is_row_empty: Array) -> int:
    """Marks the rows of ids [B, L] that keep no entry and returns the number of entries kept.

    Args:
      dtype: what ids are cast to before anything else.
      is_row_empty: out, bool [B].
    """
    kept_count = 0
    for row in range(ids.shape[0]):
        before = kept_count
        for column in range(ids.shape[1]):
            kept_count += 1 if keeps_dense(ids[row, column], column, rules, dtype) else 0
        is_row_empty[row] = kept_count == before
    return kept_count


@jit
def list_dense_entries(
    ids: Array,
    rules: DenseRules,
    dtype: type,
    is_row_empty: Array,
    filler: Any,
    out_values: Array,
    out_indices: Array,
) -> None:
    """Writes the entries kept, in order, and then those that fill empty rows, rows ascending.

    Args:
      ids, rules, dtype, is_row_empty: see `mark_dense_rows`.
      filler: the id of rows that are filled.
      out_values: out, ids [m]. Rows are not filled if m is the number of entries kept.
      out_indices: out, int64 [m, 2].
    """
    count = 0
    for row in range(ids.shape[0]):
        for column in range(ids.shape[1]):
            if keeps_dense(ids[row, column], column, rules, dtype):
                out_values[count] = dense_id(ids[row, column], column, rules, dtype)
                out_indices[count, 0] = row
                out_indices[count, 1] = column
                count += 1
    if count < out_values.shape[0]:
        for row in range(ids.shape[0]):
            if is_row_empty[row]:
                out_values[count] = filler
                out_indices[count, 0] = row
                out_indices[count, 1] = 0
                count += 1
