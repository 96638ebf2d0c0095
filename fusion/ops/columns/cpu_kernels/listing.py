"""Lists the elements of dense rows in the order of stock TensorFlow's reductions.

Each has its place in the order, whether it is an entry or not; see `kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.combine import MAX, MEAN, SUM
from fusion.cpu_ops.dense.folds import weight_sum
from fusion.cpu_ops.elements import INVALID, Batch, integer_at, weight_at
from fusion.cpu_ops.half import narrower, widener
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store_as
from fusion.runtime.tensorflow.dtypes import BFLOAT16, FLOAT16, FLOAT64


def _weight_sums(squared: bool) -> Any:
    """A jitted function (weights, first, n, dtype) -> their sum, see `weight_sum`."""
    double, single = weight_sum("float64", squared), weight_sum("float32", squared)
    half, brain = weight_sum("float16", squared), weight_sum("bfloat16", squared)

    @jit
    def total_of(weights: int, first: int, n: int, dtype: int) -> float:
        if dtype == FLOAT64:
            return double(weights, first, n)
        if dtype == FLOAT16:
            return half(weights, first, n)
        if dtype == BFLOAT16:
            return brain(weights, first, n)
        return single(weights, first, n)

    return total_of


_sum_of_weights, _sum_of_squares = _weight_sums(squared=False), _weight_sums(squared=True)
_widen_float16, _widen_bfloat16 = widener("float16"), widener("bfloat16")
_narrow_float16, _narrow_bfloat16 = narrower("float16"), narrower("bfloat16")


@jit
def _put(address: int, index: int, number: float, dtype: int) -> None:
    """Writes a weight or a divisor in the compute dtype."""
    if dtype == FLOAT64:
        store_as(address, index, number, np.float64)
    else:
        store_as(address, index, np.float32(number), np.float32)


@jit
def _rounded(number: float, dtype: int) -> float:
    """A number rounded to the table's dtype."""
    if dtype == FLOAT64:
        return number
    single = np.float32(number)
    if dtype == FLOAT16:
        single = _widen_float16(_narrow_float16(single))
    elif dtype == BFLOAT16:
        single = _widen_bfloat16(_narrow_bfloat16(single))
    return np.float64(single)


@jit
def _divisor(batch: Batch, row: int, number: int) -> float:
    """The divisor of a row's sum, for its number of entries if it has no weights."""
    column, source = batch.column, batch.source
    dtype, width = source.table_dtype, source.id_columns
    total, is_mean = float(number), column.combiner == MEAN
    if column.is_rounded_once != 0:
        return total
    if column.use_sparse_weights == 0:
        total = _rounded(total, dtype)
    else:
        weights = source.weights
        first = (batch.first + row) * source.weight_step
        if is_mean:
            total = _sum_of_weights(weights, first, width, dtype)
        else:
            total = _sum_of_squares(weights, first, width, dtype)
    root = total if is_mean else _rounded(np.sqrt(total), dtype)
    epsilon = column.divisor_epsilon
    if column.epsilon_input != 0:
        epsilon = weight_at(source.weights, 0, dtype)
    return _rounded(root + _rounded(epsilon, dtype), dtype)


@jit
def list_all(batch: Batch, divisors: int) -> int:
    """Lists all elements of rows of order AXIS.

    What is no entry is listed as zeros, or with the weight 0 or what is to be subtracted from it.

    Args:
      batch: what to list.
      divisors: out, what each row is divided by, of the compute dtype.

    Returns:
      The number of elements, or INVALID: an id is out of bounds.
    """
    column, source = batch.column, batch.source
    ids, dtype = source.ids, column.ids_dtype
    width, table_dtype = source.id_columns, source.table_dtype
    table, table_rows = source.table, source.table_rows
    row_bytes, zeros = source.row_bytes, source.zeros
    wrapped = table_rows if column.wrap_negative != 0 else int64(0)
    may_ignore = column.use_ignored_id != 0
    ignored = column.ignored_id
    has_lengths = column.has_lengths != 0
    lengths, lengths_dtype = source.entry_rows, column.rows_dtype
    is_product = column.mask_product != 0
    penalty = _rounded(column.mask_penalty, table_dtype)
    weights = source.weights
    has_weights = column.use_sparse_weights != 0
    weight_step = source.weight_step
    has_divisor = column.combiner not in (SUM, MAX)
    inside, count = int64(-1), int64(0)
    for row in range(batch.count):
        batch.starts[row] = count
        length = width
        if has_lengths:
            length = integer_at(lengths, batch.first + row, lengths_dtype)
        first, entries = (batch.first + row) * width, int64(0)
        for k in range(width):
            number = integer_at(ids, first + k, dtype)
            counts = k < length and not (may_ignore and number == ignored)
            number += wrapped if number < 0 else int64(0)
            # The first is negative unless the id is, the second unless it is too large.
            inside &= ~number & (number - table_rows)
            address = table + number * row_bytes
            entries += int64(counts)
            if has_weights:
                weight = weight_at(weights, (batch.first + row) * weight_step + k, table_dtype)
                _put(batch.weights, count, weight, table_dtype)
            elif is_product:
                _put(batch.weights, count, np.float64(1 if counts else 0), table_dtype)
            elif penalty != 0:
                _put(batch.weights, count, np.float64(0 if counts else 1) * penalty, table_dtype)
            elif not counts:
                address = zeros
            batch.addresses[count] = address
            count += 1
        if has_divisor:
            _put(
                divisors, row, _divisor(batch, row, length if has_lengths else entries), table_dtype
            )
    batch.starts[batch.count] = count
    return count if inside < 0 or count == 0 else int64(INVALID)
