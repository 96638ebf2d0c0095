"""Listing the elements of rows that stock TensorFlow's dense reductions go over.

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
    """A jitted function (weights, first, n, kind) -> their sum, see `weight_sum`."""
    double, single = weight_sum("float64", squared), weight_sum("float32", squared)
    half, brain = weight_sum("float16", squared), weight_sum("bfloat16", squared)

    @jit
    def total_of(weights: int, first: int, n: int, kind: int) -> float:
        if kind == FLOAT64:
            return double(weights, first, n)
        if kind == FLOAT16:
            return half(weights, first, n)
        if kind == BFLOAT16:
            return brain(weights, first, n)
        return single(weights, first, n)

    return total_of


_sum_of_weights, _sum_of_squares = _weight_sums(squared=False), _weight_sums(squared=True)
_widen_float16, _widen_bfloat16 = widener("float16"), widener("bfloat16")
_narrow_float16, _narrow_bfloat16 = narrower("float16"), narrower("bfloat16")


@jit
def _put(address: int, index: int, number: float, kind: int) -> None:
    """Writes a weight or a divisor, in the dtype that is computed in."""
    if kind == FLOAT64:
        store_as(address, index, number, np.float64)
    else:
        store_as(address, index, np.float32(number), np.float32)


@jit
def _rounded(number: float, kind: int) -> float:
    """A number as the table's dtype holds it."""
    if kind == FLOAT64:
        return number
    single = np.float32(number)
    if kind == FLOAT16:
        single = _widen_float16(_narrow_float16(single))
    elif kind == BFLOAT16:
        single = _widen_bfloat16(_narrow_bfloat16(single))
    return np.float64(single)


@jit
def _divisor(batch: Batch, row: int, number: int) -> float:
    """What a row's sum is divided by, for a number of entries that it has without weights."""
    column, source = batch.column, batch.source
    kind, width = source.table_dtype, source.id_columns
    total, is_mean = float(number), column.combiner == MEAN
    if column.is_rounded_once != 0:
        return total
    if column.use_sparse_weights == 0:
        total = _rounded(total, kind)
    else:
        weights = source.weights
        first = (batch.first + row) * source.weight_step
        if is_mean:
            total = _sum_of_weights(weights, first, width, kind)
        else:
            total = _sum_of_squares(weights, first, width, kind)
    root = total if is_mean else _rounded(np.sqrt(total), kind)
    epsilon = column.divisor_epsilon
    if column.epsilon_input != 0:
        epsilon = weight_at(source.weights, 0, kind)
    return _rounded(root + _rounded(epsilon, kind), kind)


@jit
def list_all(batch: Batch, divisors: int) -> int:
    """Lists all elements of rows of order AXIS.

    What is no entry is listed as zeros, or with the weight 0 or what is to be subtracted from it.

    Args:
      batch: what to list.
      divisors: out, what each row is divided by, of the dtype that is computed in.

    Returns:
      The number of elements, or INVALID: an id is out of bounds.
    """
    column, source = batch.column, batch.source
    ids, kind = source.ids, column.ids_dtype
    width, table_kind = source.id_columns, source.table_dtype
    table, table_rows = source.table, source.table_rows
    row_bytes, zeros = source.row_bytes, source.zeros
    wrapped = table_rows if column.wrap_negative != 0 else int64(0)
    may_ignore = column.use_ignored_id != 0
    ignored = column.ignored_id
    has_lengths = column.has_lengths != 0
    lengths, lengths_kind = source.entry_rows, column.rows_dtype
    is_product = column.mask_product != 0
    penalty = _rounded(column.mask_penalty, table_kind)
    weights = source.weights
    has_weights = column.use_sparse_weights != 0
    weight_step = source.weight_step
    has_divisor = column.combiner not in (SUM, MAX)
    inside, count = int64(-1), int64(0)
    for row in range(batch.count):
        batch.starts[row] = count
        left = width
        if has_lengths:
            left = integer_at(lengths, batch.first + row, lengths_kind)
        first, entries = (batch.first + row) * width, int64(0)
        for k in range(width):
            number = integer_at(ids, first + k, kind)
            counts = k < left and not (may_ignore and number == ignored)
            number += wrapped if number < 0 else int64(0)
            # The first is negative unless the id is, the second unless it is too large.
            inside &= ~number & (number - table_rows)
            address = table + number * row_bytes
            entries += int64(counts)
            if has_weights:
                weight = weight_at(weights, (batch.first + row) * weight_step + k, table_kind)
                _put(batch.weights, count, weight, table_kind)
            elif is_product:
                _put(batch.weights, count, np.float64(1 if counts else 0), table_kind)
            elif penalty != 0:
                _put(batch.weights, count, np.float64(0 if counts else 1) * penalty, table_kind)
            elif not counts:
                address = zeros
            batch.addresses[count] = address
            count += 1
        if has_divisor:
            _put(divisors, row, _divisor(batch, row, left if has_lengths else entries), table_kind)
    batch.starts[batch.count] = count
    return count if inside < 0 or count == 0 else int64(INVALID)
