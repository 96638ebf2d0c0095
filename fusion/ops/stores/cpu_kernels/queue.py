"""The queue of keys whose rows are to be fetched while no lookup waits for them."""

from __future__ import annotations

from numba import types

from fusion.ops.stores.cpu_kernels.layout import MissQueue
from fusion.ops.tables.cpu_kernels.buckets import lock, unlock
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit

_sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))


@jit
def push(queue: MissQueue, table: int, keys: Words, numbers: Words, count: int) -> None:
    """Adds keys of a table; those that find no room are counted, and dropped.

    Args:
      table: its number.
      keys, numbers: the address of the keys, and of the indices of those to add.
    """
    lock(queue, MissQueue.lock)
    before, capacity = queue.count, queue.capacity
    added = min(count, capacity - before)
    for k in range(added):
        at = (queue.first + before + k) % capacity
        queue.entries[2 * at] = table
        queue.entries[2 * at + 1] = keys[numbers[k]]
    queue.count = before + added
    dropped = queue.dropped_count + count - added
    queue.dropped_count = dropped
    unlock(queue, MissQueue.lock)
    if before == 0 and added > 0:
        _sem_post(queue.semaphore)


@jit
def take(queue: MissQueue, out: Words, max_count: int, result: Words) -> None:
    """Removes the first keys from the queue.

    Args:
      out: int64 [max_count, 2]: the number of the table, and the key.
      result: out: a word, how many there are.
    """
    lock(queue, MissQueue.lock)
    count, first = min(queue.count, max_count), queue.first
    capacity = queue.capacity
    for k in range(count):
        at = (first + k) % capacity
        out[2 * k] = queue.entries[2 * at]
        out[2 * k + 1] = queue.entries[2 * at + 1]
    queue.first = (first + count) % capacity
    remaining = queue.count - count
    queue.count = remaining
    unlock(queue, MissQueue.lock)
    if remaining > 0:
        _sem_post(queue.semaphore)
    result[int64(0)] = count
