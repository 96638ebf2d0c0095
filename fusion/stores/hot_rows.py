"""The cache of a table store: the most recently used rows of each table, in memory.

Lookups are native code that needs neither Python nor its lock, see `fusion.ops.stores.cpu_kernels`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.ops.stores.cpu_kernels.layout import (
    HISTOGRAM_BUCKETS,
    HotTable,
    MissQueue,
    StoreRecord,
    hash_of_name,
)
from fusion.ops.tables.cpu_kernels.layout import KeyIndex, index_bytes
from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.process import keep_forever
from fusion.runtime.threads import pool
from fusion.stores.tier import HitMask, Keys, Rows, TableDescription

#: Bytes of a line of the cache.
_LINE = 64

#: int32 counts rows.
_MAX_ROWS = 2**31 - 2


class _Function:
    """A function of a module of `fusion.ops`, compiled; a call releases Python's lock.

    Attributes:
      call: the function itself. No code in Python comes before it, which an interrupt could end.
    """

    def __init__(self, name: str, module: str, arguments: int) -> None:
        symbol = f"hot_{name}"
        compile_it = Compilation(f"fusion.ops.{module}", name, arguments, symbol)
        self.address = objects.address(symbol, compile_it)
        self.call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(self.address)

    def __call__(self, *arguments: int) -> None:
        """Calls it with int64s."""
        self.call(*arguments)


class Native:
    """The functions of `fusion.ops.stores.cpu_kernels` that Python calls, by their names."""

    def __init__(self) -> None:
        self.begin_index = _Function("begin_index", "tables.cpu_kernels.index", 5)
        self.read_rows = _Function("read_rows", "stores.cpu_kernels.table", 6)
        self.insert_rows = _Function("insert_rows", "stores.cpu_kernels.table", 6)
        self.remove_rows = _Function("remove_rows", "stores.cpu_kernels.table", 3)
        self.remove_all = _Function("remove_all", "stores.cpu_kernels.table", 1)
        self.look_up = _Function("look_up", "stores.cpu_kernels.lookup", 1)
        self.look_up_open = _Function("look_up_open", "stores.cpu_kernels.lookup", 1)
        self.help_lookup = _Function("help_lookup", "stores.cpu_kernels.lookup", 2)
        self.enter = _Function("enter_open", "stores.cpu_kernels.lookup", 2)
        self.end_lookup = _Function("end_lookup", "stores.cpu_kernels.lookup", 2)
        self.take = _Function("take", "stores.cpu_kernels.queue", 4)


@cache
def native() -> Native:
    """The functions, loaded or compiled."""
    return Native()


def address_of(array: NDArray[Any]) -> int:
    """The address of an array's elements."""
    address: int = array.__array_interface__["data"][0]  # faster than `ctypes`
    return address


def _lines(size: int) -> NDArray[np.uint8]:
    """Zeros at the start of a line, whose pages are allocated when they are written."""
    memory = np.zeros(size + _LINE, np.uint8)
    start = -address_of(memory) % _LINE
    return memory[start : start + size]


class HotRows:
    """The hot rows of a table.

    Args:
      words: its `HotTable`, zeros.
      table: the table.
      capacity: how many rows there are at most; 0: none, and each lookup waits.
      threshold: the share of hits from which on a lookup does not wait for the other rows.
    """

    def __init__(
        self, words: NDArray[np.int64], table: TableDescription, capacity: int, threshold: float
    ) -> None:
        if not 0 <= capacity <= _MAX_ROWS:
            raise ValueError(f"cache_rows of {table.name} must be 0 to {_MAX_ROWS}, got {capacity}")
        if capacity == 0:
            threshold = 1.0
        self._words, self._address = words, address_of(words)
        self._dimension, self._name = table.dimension, table.name.encode()
        self._default = np.full(table.dimension, table.default, np.float32)
        self._text = ctypes.create_string_buffer(self._name)
        self._index, self._owners = _lines(index_bytes(capacity)), np.zeros(capacity, np.int64)
        self._capacity = capacity
        self._rows = _lines(4 * capacity * table.dimension)
        self._marks = np.zeros(capacity, np.uint8)
        native().begin_index(address_of(self._index), capacity, 1, 0, 1)
        words[HotTable.index] = address_of(self._index)
        words[HotTable.rows] = address_of(self._rows)
        words[HotTable.owners] = address_of(self._owners)
        words[HotTable.marks] = address_of(self._marks)
        words[HotTable.default] = address_of(self._default)
        words[HotTable.row_bytes], words[HotTable.capacity] = 4 * table.dimension, capacity
        words[HotTable.name] = ctypes.addressof(self._text)
        words[HotTable.name_length] = len(self._name)
        words[HotTable.name_hash] = hash_of_name(self._name)
        words[HotTable.threshold] = struct.unpack("<q", struct.pack("<d", threshold))[0]

    @property
    def address(self) -> int:
        """The address of its `HotTable`."""
        return self._address

    @property
    def byte_count(self) -> int:
        """The memory that it takes when it is full, at most."""
        arrays = self._index, self._rows, self._owners, self._marks
        return sum(array.nbytes for array in arrays)

    def read(self, keys: Keys, rows: Rows) -> HitMask:
        """Copies the rows of keys [n] that are there; nothing is counted."""
        missing = np.empty(len(keys), np.int64)
        result = np.array([address_of(missing), 0], np.int64)
        addresses = address_of(keys), 0, len(keys), address_of(rows), address_of(result)
        native().read_rows(self._address, *addresses)
        if result[1] == len(keys):
            return np.zeros(len(keys), np.bool_)
        has_row = np.ones(len(keys), np.bool_)
        has_row[missing[: result[1]]] = False
        return has_row

    def has(self, keys: Keys) -> HitMask:
        """A mask [n] of the keys that have a row."""
        return self.read(keys, np.empty((len(keys), self._dimension), np.float32))

    def keys(self) -> Keys:
        """All keys that have a row, and maybe some that had one, which may be there several times.

        No thread may insert meanwhile.
        """
        count = int(self._index[: 8 * KeyIndex.SIZE].view(np.int64)[KeyIndex.row_count])
        return self._owners[:count].copy()

    def insert(self, keys: Keys, rows: Rows, chosen: HitMask | None = None) -> None:
        """Inserts rows [n, D] of keys [n], of all or of those chosen; evicts others."""
        self._insert(keys, rows, 1, chosen)

    def replace(self, keys: Keys, rows: Rows) -> None:
        """Replaces the rows of those keys that have one."""
        self._insert(keys, rows, 0, None)

    def _insert(self, keys: Keys, rows: Rows, is_new: int, chosen: HitMask | None) -> None:
        if self._capacity == 0:
            return
        choice = 0 if chosen is None else address_of(chosen)
        addresses = address_of(keys), address_of(rows)
        native().insert_rows(self._address, *addresses, len(keys), is_new, choice)

    def remove(self, keys: Keys | None) -> None:
        """Takes the rows of keys out, of all with None."""
        if keys is None:
            native().remove_all(self._address)
        else:
            native().remove_rows(self._address, address_of(keys), len(keys))

    def release(self) -> None:
        """Releases the memory of all rows; lookups must have ended."""
        self._index = self._rows = self._marks = _lines(0)
        self._owners = np.zeros(0, np.int64)

    def count(self, field: int) -> int:
        """A counter of `HotTable`."""
        return int(self._words[field])

    def add_unknown(self, added: int) -> None:
        """Counts keys that no tier has. Other counters are the lookups', which write any time."""
        self._words[HotTable.unknown_count] += added


class Queue:
    """Keys whose rows no lookup waits for, see `MissQueue`."""

    def __init__(self, capacity: int) -> None:
        self._words = np.zeros(MissQueue.SIZE, np.int64)
        self._entries = np.zeros((capacity, 2), np.int64)
        self._words[MissQueue.entries] = address_of(self._entries)
        self._words[MissQueue.capacity] = capacity
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.c_void_p(self.address + 8 * MissQueue.semaphore)
        self._libc.sem_init(self._semaphore, 0, 0)

    @property
    def address(self) -> int:
        """The address of `MissQueue`."""
        return address_of(self._words)

    @property
    def dropped_count(self) -> int:
        """Keys dropped because the queue was full."""
        return int(self._words[MissQueue.dropped_count])

    def wait(self) -> None:
        """Waits until there may be something."""
        while self._libc.sem_wait(self._semaphore) != 0:
            pass  # a signal came

    def wake(self) -> None:
        """Wakes the waiting thread."""
        self._libc.sem_post(self._semaphore)

    def take(self) -> NDArray[np.int64]:
        """Removes and returns all entries, [n, 2]: numbers of tables, and keys."""
        entries, count = np.empty_like(self._entries), np.zeros(1, np.int64)
        native().take(self.address, address_of(entries), len(entries), address_of(count))
        return entries[: count[0]]


class Record:
    """The `StoreRecord` of a store. Ops may look at it whenever they like, so it stays for ever."""

    def __init__(self, server: int, upcalls: int, patience_ns: int) -> None:
        self.words = np.zeros(StoreRecord.SIZE, np.int64)
        keep_forever(self.words)
        self.address = address_of(self.words)
        self.words[StoreRecord.lookup] = native().look_up.address
        self.words[StoreRecord.work] = native().help_lookup.address
        self.words[StoreRecord.server], self.words[StoreRecord.upcalls] = server, upcalls
        self.words[StoreRecord.patience_ns] = patience_ns

    def open(self, tables: NDArray[np.int64], count: int, queue: Queue) -> None:
        """Lets lookups begin.

        Args:
          tables: `HotTable` [count].
        """
        pool.start_pool()
        self.words[StoreRecord.pool] = pool.pool_address() if pool.thread_count() > 1 else 0
        self.words[StoreRecord.tables] = address_of(tables)
        self.words[StoreRecord.table_count], self.words[StoreRecord.queue] = count, queue.address
        self.words[StoreRecord.is_open] = 1

    def enter(self, is_open: NDArray[np.int64]) -> None:
        """Writes whether the store is open; then it stays so until `end_lookup`.

        Args:
          is_open: out: [1]. It is written in the call, which an interrupt may come right after.
        """
        native().enter(self.address, address_of(is_open))

    def close(self) -> None:
        """Lets no lookup begin any more; those that have begun go on."""
        self.words[StoreRecord.is_open] = 0

    @property
    def user_count(self) -> int:
        """Lookups that go on."""
        return int(self.words[StoreRecord.user_count])

    @property
    def latencies(self) -> list[int]:
        """How many lookups took how long, see `counters.Latency`."""
        first = StoreRecord.latencies
        return [int(count) for count in self.words[first : first + HISTOGRAM_BUCKETS]]

    @property
    def latency_ns(self) -> int:
        """Of all lookups together."""
        return int(self.words[StoreRecord.latency_ns])


def new_tables(count: int) -> tuple[NDArray[np.int64], Sequence[NDArray[np.int64]]]:
    """The words of so many `HotTable`s, side by side, and those of each."""
    words = np.zeros((count, HotTable.SIZE), np.int64)
    return words, list(words)
