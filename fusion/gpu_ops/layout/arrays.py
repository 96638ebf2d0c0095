"""Arrays that lie behind the record of a call, in the order of the fields with their addresses.

They are given as (field, size, size by column): the words of an array of a call of n columns are
the one size, and n times the other.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Arrays: TypeAlias = tuple[tuple[int, int, int], ...]


def words_of(columns: int, record: int, arrays: Arrays) -> int:
    """The words of a record and its arrays."""
    words = record
    for _, size, column_size in arrays:
        words += size + columns * column_size
    return words


def open_arrays(call: Any, base: int, columns: int, record: int, arrays: Arrays) -> int:
    """Clears a call and writes where its arrays are; gives the index of the word behind them.

    Args:
        call: of the host, int64, copied to the address `base` of the device.
        record: the words of the record.
    """
    for k in range(call.shape[0]):
        call[k] = 0
    index = record
    for field, size, column_size in arrays:
        call[field] = base + 8 * index
        index += size + columns * column_size
    return index


def array_index(call: Any, base: int, field: int) -> int:
    """The index of an array's first word in a call, by the field with its address."""
    return (call[field] - base) // 8
