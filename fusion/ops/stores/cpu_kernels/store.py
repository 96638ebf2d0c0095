"""The store that has a name, and the table of a store that has one."""

from __future__ import annotations

import numpy as np

from fusion.ops.stores.cpu_kernels.layout import (
    HASH_PRIME,
    HASH_START,
    StoreNames,
    StoreRecord,
    StoreSlot,
)
from fusion.runtime.native.atomic import atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcmp, load_as


@jit
def hash_of_text(address: int, length: int) -> int:
    """As `layout.hash_of_name`."""
    value = np.uint64(HASH_START)
    for k in range(length):
        value = (value ^ np.uint64(load_as(address, k, np.uint8))) * np.uint64(HASH_PRIME)
    return int64(value)


@jit
def find_store(names: StoreNames, name: int, length: int) -> int:
    """The address of the `StoreRecord` under a name, 0 if there is none."""
    for k in range(atomic_load(names, StoreNames.count)):
        slot = names.slots[k]
        if _is_name(slot.name, slot.name_length, name, length):
            return atomic_load(slot, StoreSlot.record)
    return int64(0)


@jit
def _is_name(one: int, one_length: int, other: int, other_length: int) -> bool:
    return one_length == other_length and c_memcmp(one, other, one_length) == 0


@jit
def find_table(record: StoreRecord, name: int, length: int, hashed: int, first: int) -> int:
    """The number of the table of a store that has a name, -1 if there is none.

    Args:
      hashed: the hash of the name.
      first: where the search begins.
    """
    count = record.table_count
    for k in range(count):
        number = first + k if first + k < count else first + k - count
        table = record.tables[number]
        if table.name_hash == hashed and _is_name(table.name, table.name_length, name, length):
            return int64(number)
    return int64(-1)
