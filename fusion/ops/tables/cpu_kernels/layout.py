"""An index of keys in memory: its head, how large it is, and what becomes of new keys.

This module needs no Numba. How the index works: see `index`.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields

#: A power of two, and the number of the first buckets.
STRIPES = 1024

#: The keys of a bucket, which is a line of the cache.
KEYS = 5
BUCKET_BYTES = 64

#: Buckets are added while there are more keys than so many tenths of their places.
LOAD_TENTHS = 7

#: The maximum number of slot variables of a table that are distinguished.
MAX_SLOTS = 256

#: Of P partitions, that of a key is key % EV_BUCKETS % P.
EV_BUCKETS = 1000

#: Rows are int32, counted from 1.
MAX_ROWS = 2**31 - 2


class KeyIndex(Layout):
    """The head of an index, a whole number of lines; buckets and free rows follow."""

    capacity: Int64  # of rows
    admission: Int64  # how often a key is seen before it gets a row
    seed: Int64  # of new rows
    waits: Flag  # whether keys that find no room wait for it
    clock: Int64  # how many lookups in training there were
    bucket_count: Int64  # those that hashes lead to
    max_buckets: Int64
    more_count: Int64  # those that continue chains, behind the others
    max_more: Int64
    free_more: Int64  # the first of a chain of these, from 1 on
    key_count: Int64
    row_count: Int64  # those that were ever in use
    free_rows: Int64  # how many are free of them
    pending_rows: Int64  # how many of them no key has any more, but an op may still write to
    aged_rows: Int64  # how many of these, the first, were so at the last eviction
    buckets: Int64  # where they start, in bytes from the index on
    more: Int64
    free: Int64  # int32 [capacity], the numbers of free rows
    pending: Int64  # the same of those that are pending
    records: Int64  # int32 [capacity, 2] of rows: how often their key was seen, and the last step
    lock: Int64  # of what is free
    is_growing: Int64
    fill_lock: Int64  # of the next
    filled: Words = fields(MAX_SLOTS)  # of each slot how many rows have their first values
    padding: Fields = fields(1)
    locks: Fields = fields(STRIPES)
    versions: Fields = fields(STRIPES)


class Addition(Layout):
    """What becomes of keys that are seen in training."""

    admission: Int64  # how often a key is seen before it gets a row
    step: Int64
    counts: Address  # how often each key is seen, int32 [count]; 0: once
    table: Address  # [capacity, dim], 0 if there is none
    first: Address  # what a new row begins with, 0 for zeros; if there are no samples
    samples: Address  # initial rows, [sample_count, dim], or 0
    sample_count: Int64
    dim: Int64
    item_bytes: Int64  # 4 or 8
    added_count: Int64  # out: keys that got a row
    refused_count: Int64  # out: how often a key found no room


class KeyedGather(Layout):
    """What is gathered."""

    index: KeyIndex
    table: Address
    default: Address  # the row of keys that have none
    row_bytes: Int64
    keys: Words  # int64
    rows: Words  # out: int64, -1 for keys that have none
    out: Address  # out: the rows
    addition: Addition  # where keys are noted as seen, see `note_keys`; 0: nowhere


def max_buckets(capacity: int) -> int:
    """Buckets for twice as many keys as rows: some of them have none."""
    return max(STRIPES, 20 * capacity // (LOAD_TENTHS * KEYS) + 1)


def index_bytes(capacity: int) -> int:
    """The bytes of an index of so many rows at most, whole words."""
    buckets = max(STRIPES, 20 * capacity // (LOAD_TENTHS * KEYS) + 1)
    size = 8 * KeyIndex.SIZE + 2 * BUCKET_BYTES * buckets
    return size + 16 * capacity
