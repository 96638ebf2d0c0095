"""Reads the elements of a column: ids and weights of any dtype.

What a column does, and its inputs, its *source*: see `ColumnAttrs` and `ColumnInputs`; both
are addresses here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.column_layout import DENSE, LIMIT_BLOCK, ColumnAttrs, ColumnInputs
from fusion.cpu_ops.half import narrower, widener
from fusion.cpu_ops.vectors import limit_counter
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, store_as
from fusion.runtime.tensorflow.dtypes import FLOAT16, FLOAT32, FLOAT64, INT64

#: That rows are not sorted, or that something is out of bounds.
INVALID = -1

#: No memory holds so many rows.
MAX_ROWS = 2**48


class Batch(NamedTuple):
    """Rows of a column, and workspace for their entries, in compiled code: addresses.

    Attributes:
      column, source: what is done with what, see above.
      first, count: the rows.
      addresses: out, of the table's row of each entry, int64.
      starts: out, where each row's entries start, int64 [count + 1].
      weights: out, of each entry, float64 for a table of it, else float32.
    """

    column: ColumnAttrs
    source: ColumnInputs
    first: int
    count: Any  # an int
    addresses: Words
    starts: Words
    weights: int


_widen_float16, _widen_bfloat16 = widener("float16"), widener("bfloat16")
_narrow_float16, _narrow_bfloat16 = narrower("float16"), narrower("bfloat16")


@jit
def integer_at(address: int, index: int, dtype: int) -> int:
    """The element at an index of an array of int32 or int64, widened to int64."""
    return (
        load_as(address, index, np.int64)
        if dtype == INT64
        else int64(load_as(address, index, np.int32))
    )


@jit
def value_bytes(dtype: int) -> int:
    """The bytes of an id, or of a value that boundaries make one of."""
    return int64(8 if dtype in (INT64, FLOAT64) else 4)


@jit
def rows_until(last: int) -> int:
    """The number of rows up to that of the last entry; none if it is negative.

    Never more than one above `MAX_ROWS`, so that the number can be added to.
    """
    return min(max(last, int64(-1)), int64(MAX_ROWS)) + 1


@jit
def overflows(left: int, right: int) -> bool:
    """Whether the product of two numbers, neither below 0, is 2**63 or more."""
    if left | right < 2**31:
        return False
    return right != 0 and left > int64(2**63 - 1) // right


def _counter(stored: str, dtype: type) -> Any:
    """A jitted function (value, limits, count) -> the number of limits that are not above a value.

    All of them for NaN. How they lie in memory: `column_layout.LIMIT_BLOCK`.
    """
    count_block = limit_counter(stored)

    @jit
    def bucket(value: Any, limits: int, count: int) -> int:
        first, block_count = int64(0), (count + LIMIT_BLOCK - 1) // LIMIT_BLOCK
        largest = limits + 4 * LIMIT_BLOCK * block_count
        while block_count > LIMIT_BLOCK:
            half = block_count // 2
            if not value < dtype(load_as(largest, first + half - 1, np.float32)):
                first += half
            block_count -= half
        if block_count > 1:
            first += min(count_block(value, largest + 4 * first), block_count - 1)
        inside = count_block(value, limits + 4 * LIMIT_BLOCK * first)
        return min(first * LIMIT_BLOCK + inside, count)

    return bucket


bucket32, bucket64 = _counter("float32", np.float32), _counter("float64", np.float64)


@jit
def _bucket_at(address: int, index: int, dtype: int, limits: int, count: int) -> int:
    """The bucket of a value, as stock's Bucketize has it: integers are rounded to float32."""
    if dtype == FLOAT64:
        return bucket64(load_as(address, index, np.float64), limits, count)
    if dtype == FLOAT32:
        return bucket32(load_as(address, index, np.float32), limits, count)
    return bucket32(np.float32(integer_at(address, index, dtype)), limits, count)


@jit
def id_at(column: ColumnAttrs, source: ColumnInputs, index: int, position: int) -> int:
    """The id of an element: its index among all, and its position in its row."""
    ids, dtype = source.ids, column.ids_dtype
    count = column.boundary_count
    index += index * source.id_gap
    if count > 0:
        number = _bucket_at(ids, index, dtype, source.boundaries, count)
    else:
        number = integer_at(ids, index, dtype)
    number += position * column.column_stride
    buckets = column.num_buckets
    if buckets > 0 and (number < 0 or number >= buckets):
        return column.bucket_default
    if number < 0 and column.wrap_negative != 0:
        number += source.table_rows
    return number


@jit
def first_element(column: ColumnAttrs, source: ColumnInputs, row: int) -> int:
    """The first element of a row that is dense or has a split."""
    if column.id_format == DENSE:
        return row * source.id_columns
    return integer_at(source.entry_rows, row, column.rows_dtype)


@jit
def is_ignored(column: ColumnAttrs, source: ColumnInputs, index: int) -> bool:
    """Whether an element has the ignored id."""
    if column.use_ignored_id == 0:
        return False
    dtype = column.ids_dtype
    index += index * source.id_gap
    if dtype == FLOAT32:
        return load_as(source.ids, index, np.float32) == np.float32(column.ignored_id)
    if dtype == FLOAT64:
        return load_as(source.ids, index, np.float64) == np.float64(column.ignored_id)
    return integer_at(source.ids, index, dtype) == column.ignored_id


@jit
def weight_at(address: int, index: int, dtype: int) -> float:
    """The weight at an index, exactly, as a double."""
    if dtype == FLOAT32:
        return np.float64(load_as(address, index, np.float32))
    if dtype == FLOAT64:
        return load_as(address, index, np.float64)
    bits = load_as(address, index, np.uint16)
    if dtype == FLOAT16:
        return np.float64(_widen_float16(bits))
    return np.float64(_widen_bfloat16(bits))


@jit
def is_dropped(column: ColumnAttrs, source: ColumnInputs, number: int, index: int) -> bool:
    """Whether an element is dropped because of its id or its weight."""
    if number < 0 and column.prune != 0:
        return True
    if column.use_sparse_weights == 0 or column.prune_sparse_weights == 0:
        return False
    # A NaN weight is not > 0: it is dropped, as stock TensorFlow does.
    return not weight_at(source.weights, index, source.table_dtype) > 0


@jit
def put_weight(address: int, index: int, weight: float, dtype: int) -> None:
    """Writes a weight, rounded to its dtype."""
    if dtype == FLOAT32:
        store_as(address, index, np.float32(weight), np.float32)
    elif dtype == FLOAT64:
        store_as(address, index, np.float64(weight), np.float64)
    elif dtype == FLOAT16:
        store_as(address, index, _narrow_float16(np.float32(weight)), np.uint16)
    else:
        store_as(address, index, _narrow_bfloat16(np.float32(weight)), np.uint16)


@jit
def integer_id(ids: int, dtype: int, limits: int, count: int, index: int) -> int:
    """The id of an element that is an integer id."""
    return integer_at(ids, index, dtype)


@jit
def bucket_id(ids: int, dtype: int, limits: int, count: int, index: int) -> int:
    """The id of an element that is a float32, its bucket among `count` limits."""
    return bucket32(load_as(ids, index, np.float32), limits, count)
