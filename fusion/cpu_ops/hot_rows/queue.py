"""The queue of keys whose rows are to be fetched while nobody waits for them."""

from __future__ import annotations

from numba import types

from fusion.cpu_ops.hot_rows.layout import MissQueue
from fusion.cpu_ops.keys.buckets import lock, unlock
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store

_sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))


@jit
def push(queue: int, table: int, keys: int, numbers: int, count: int) -> None:
    """Adds keys of a table; those that find no room are counted, and dropped.

    Args:
      table: its number.
      keys, numbers: the address of keys, and of which of them.
    """
    lock(queue, MissQueue.lock)
    before, capacity = load(queue, MissQueue.count), load(queue, MissQueue.capacity)
    added = min(count, capacity - before)
    for k in range(added):
        at = (load(queue, MissQueue.first) + before + k) % capacity
        store(load(queue, MissQueue.entries), 2 * at, table)
        store(load(queue, MissQueue.entries), 2 * at + 1, load(keys, load(numbers, k)))
    store(queue, MissQueue.count, before + added)
    dropped = load(queue, MissQueue.dropped_count) + count - added
    store(queue, MissQueue.dropped_count, dropped)
    unlock(queue, MissQueue.lock)
    if before == 0 and added > 0:
        _sem_post(queue + 8 * MissQueue.semaphore)


@jit
def take(queue: int, out: int, most: int, result: int) -> None:
    """Takes what came first.

    Args:
      out: int64 [most, 2]: the number of the table, and the key.
      result: out: a word, how many there are.
    """
    lock(queue, MissQueue.lock)
    count, first = min(load(queue, MissQueue.count), most), load(queue, MissQueue.first)
    capacity = load(queue, MissQueue.capacity)
    for k in range(count):
        at = (first + k) % capacity
        store(out, 2 * k, load(load(queue, MissQueue.entries), 2 * at))
        store(out, 2 * k + 1, load(load(queue, MissQueue.entries), 2 * at + 1))
    store(queue, MissQueue.first, (first + count) % capacity)
    left = load(queue, MissQueue.count) - count
    store(queue, MissQueue.count, left)
    unlock(queue, MissQueue.lock)
    if left > 0:
        _sem_post(queue + 8 * MissQueue.semaphore)
    store(result, int64(0), count)
