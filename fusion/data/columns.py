"""From Arrow's arrays to NumPy's: casts, nulls, lists, and the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from fusion.data.files import DataError
from fusion.data.schema import Column

Array = npt.NDArray[Any]

#: The rows of a column, [rows, width], or of lists: their values and offsets, int64 [rows + 1].
Rows = Array | tuple[Array, Array]

_UNITS = {32: pa.int32(), 64: pa.int64()}


def without_nulls(column: Column, data: pa.ChunkedArray, path: str) -> list[pa.Array]:
    """A column as arrays of its tensor's dtype, or as LargeListArrays of it.

    Args:
        column: of the file.
        data: its rows.
        path: of the file, for messages.

    Raises:
        DataError: there are nulls and no fill value, or values that the dtype does not have.
    """
    try:
        return [_array(column, chunk) for chunk in data.chunks if len(chunk)]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{path}: column {column.name}: {error}") from error


def _array(column: Column, array: pa.Array) -> pa.Array:
    if pa.types.is_null(array.type):
        array = pa.nulls(len(array), column.row_type)
    if pa.types.is_fixed_size_list(array.type):
        return _values(column, _of_fixed_size(column, array))
    if column.form is None:
        return _values(column, array)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    if column.longest is not None and lengths.max() > column.longest:
        raise ValueError(f"a list of {lengths.max()} values, more than sparse_max {column.longest}")
    offsets = np.zeros([len(lengths) + 1], np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), _values(column, array.flatten()))


def _of_fixed_size(column: Column, array: pa.Array) -> pa.Array:
    """The values of lists that all have the same size; of null ones as many nulls."""
    values = array.flatten()
    if not array.null_count:
        return values
    if column.fill_value is None:
        raise ValueError(
            f"{array.null_count} of its lists of {column.width} are null; {_advice(column)}"
        )
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    rows = np.cumsum(~is_null) - 1
    places = rows[:, np.newaxis] * column.width + np.arange(column.width)
    return values.take(pa.array(places.ravel(), mask=np.repeat(is_null, column.width)))


def _values(column: Column, array: pa.Array) -> pa.Array:
    """Values of the column's dtype, without nulls."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    target = column.arrow_type
    if pa.types.is_temporal(array.type):
        array = array.view(_UNITS[array.type.bit_width])
    if array.type != target:
        # A float is the nearest one; no integer changes.
        array = array.cast(target, safe=not pa.types.is_floating(target))
    if not array.null_count:
        return array
    if column.fill_value is None:
        raise ValueError(f"{array.null_count} of its values are null; {_advice(column)}")
    return pc.fill_null(array, pa.scalar(_filled(column), target))


def _advice(column: Column) -> str:
    return f"fill_values={{{column.name!r}: ...}} says what stands for them"


def _filled(column: Column) -> Any:
    value = column.fill_value
    return value.encode() if isinstance(value, str) else value


def in_order(column: Column, arrays: Sequence[pa.Array], order: Array | None) -> Rows:
    """The rows of arrays, one behind the other.

    Args:
        column: what they are of.
        arrays: what `without_nulls` gave for each file.
        order: which row comes at each position; None for that of the files.
    """
    # Arrow's memory is aligned as TensorFlow's has to be: no copy is made.
    whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    if column.form is None:
        if column.width > 1:
            rows = _numbers(whole).reshape(-1, column.width)
            rows = rows if order is None else rows.take(order, axis=0)
        else:
            rows = _numbers(whole if order is None else whole.take(pa.array(order)))[:, np.newaxis]
        if column.dtype.is_floating and column.fill_value is not None:
            rows = np.where(np.isnan(rows), np.asarray(column.fill_value, rows.dtype), rows)
        return rows
    lists = whole if order is None else whole.take(pa.array(order))
    offsets = lists.offsets.to_numpy()
    return _numbers(lists.values)[offsets[0] : offsets[-1]], offsets - offsets[0]


def _numbers(array: pa.Array) -> Array:
    """The values of an array without nulls; of strings, bytes as objects."""
    return array.to_numpy(zero_copy_only=False)


def no_rows(column: Column) -> Rows:
    """What a column is where there is no row."""
    dtype = object if column.dtype == tf.string else column.dtype.as_numpy_dtype
    if column.form is None:
        return np.zeros([0, column.width], dtype)
    return np.zeros([0], dtype), np.zeros([1], np.int64)
