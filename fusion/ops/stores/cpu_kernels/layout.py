"""A table of hot rows in memory, the store that it is of, and a lookup in several of them.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.runtime.layout import (
    Address,
    Fields,
    Flag,
    Float64,
    Int64,
    Layout,
    Words,
    fields,
    record,
)
from fusion.runtime.threads.layout import Job, Pool

#: Of a histogram of nanoseconds: an octave has so many buckets, so that a bucket is 1/8 wide.
OCTAVE_BUCKETS = 8
HISTOGRAM_BUCKETS = 40 * OCTAVE_BUCKETS


#: Of FNV-1a (G. Fowler, L. C. Noll, P. Vo), 64 bits.
HASH_START, HASH_PRIME = 0xCBF29CE484222325, 0x100000001B3


def hash_of_name(name: bytes) -> int:
    """The hash of a name, a word with a sign; `store.hash_of_text` is the same in native code."""
    value = HASH_START
    for byte in name:
        value = (value ^ byte) * HASH_PRIME % 2**64
    return value - 2**64 if value >= 2**63 else value


class HotTable(Layout):
    """The hot rows of a table: an index of keys, and a row for each of them."""

    index: KeyIndex
    rows: Address  # [capacity, row_bytes]
    owners: Words  # int64 [capacity]: whose row it is
    marks: Address  # uint8 [capacity]: 1 if it was read since the hand came by
    default: Address  # the row of keys that no tier has
    row_bytes: Int64
    capacity: Int64
    hand: Int64  # where the search for a row to be replaced goes on
    lock: Int64  # of who changes the table
    name: Address  # UTF-8
    name_length: Int64
    name_hash: Int64  # see `hash_of_name`
    threshold: Float64  # lookups with a smaller share of hits wait for the others
    hit_count: Int64  # keys that were found
    miss_count: Int64
    wait_count: Int64  # lookups that had to wait
    default_count: Int64  # misses that were answered by the default row while theirs is fetched
    unknown_count: Int64  # misses that no tier has a row for
    insert_count: Int64
    evict_count: Int64


class MissQueue(Layout):
    """Keys whose rows are to be fetched while no lookup waits; a ring of (table, key)."""

    semaphore: Fields = fields(4)  # sem_t has 32 bytes; is posted when there is something
    lock: Int64
    entries: Words
    capacity: Int64
    first: Int64
    count: Int64
    dropped_count: Int64  # keys that found no room


class StoreRecord(Layout):
    """A store: what lookups need to know. It stays where it is for the life of the process."""

    is_open: Flag
    user_count: Int64  # who looks up at the moment
    tables: HotTable  # [table_count]
    table_count: Int64
    lookup: Address  # void (*)(`StoreCall`)
    work: Address  # void (*)(`StoreCall`, 0), of threads that help
    pool: Pool  # of threads, 0 for none
    server: Int64  # who fetches what is waited for, see `fusion.runtime.upcalls`
    upcalls: Address
    patience_ns: Int64
    queue: MissQueue
    latency_ns: Int64  # of all lookups together
    latencies: Fields = fields(HISTOGRAM_BUCKETS)


class StoreSlot(Layout):
    """A name of a store."""

    name: Address  # UTF-8
    name_length: Int64
    record: StoreRecord  # 0 if there is none


#: So many names a process has for stores.
MAX_STORES = 64


class StoreNames(Layout):
    """The names by which ops find stores."""

    count: Int64
    slots: StoreSlot = record(StoreSlot, MAX_STORES)


class StoreCall(Job):
    """A lookup in tables of a store."""

    store: StoreRecord
    calls: TableCall  # [call_count]
    call_count: Int64
    task_keys: Int64
    waiting_count: Int64  # out: keys whose rows are to be waited for


class TableCall(Layout):
    """Keys that are looked up in a table."""

    table: HotTable
    keys: Words  # int64 [key_count]
    key_count: Int64
    out: Address  # [key_count, row_bytes]
    missing: Words  # out: the numbers of keys that were not found, int64 [key_count], unordered
    missing_count: Int64  # out
    is_waiting: Flag  # out: whether the rows of these have to be fetched now
    first_task: Int64


class WaitingTable(Layout):
    """A table of such a request; the keys of all follow behind the last one, int64."""

    number: Int64
    key_count: Int64


class Waiting(Layout):
    """What Python is asked to fetch: the head of a request. A `WaitingTable` for each follows."""

    store: StoreRecord
    table_count: Int64
    tables: WaitingTable = record(WaitingTable, 0)
