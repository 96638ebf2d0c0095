"""What becomes of the keys of one table in a call: found, gathered and, in training, added.

`call` is the address of a `KeyedCall`; `column` see `sharing.failure`.
"""

from __future__ import annotations

from fusion.cpu_ops.keys.gather import copy_missing
from fusion.cpu_ops.keys.index import add_missing
from fusion.cpu_ops.keys.layout import Addition, KeyedGather, KeyIndex
from fusion.ops.cpu.tables.layout import KeyedCall, SharedVariable
from fusion.ops.cpu.tables.sharing import check_index, check_rows, failure
from fusion.runtime.native.atomic import atomic_add
from fusion.runtime.native.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED
from fusion.runtime.native.frame import failed
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, store

#: Keys that are worth another thread, and those of a task at least.
PARALLEL_KEYS, TASK_KEYS = 4096, 512

#: Tasks for each thread.
TASKS_PER_THREAD = 4

_fail_initial = failure(
    INVALID_ARGUMENT, "initial has %lld bytes, which are no two or more rows of %lld"
)
_fail_full = failure(
    RESOURCE_EXHAUSTED, "there is no room for %lld keys more than the capacity of %lld rows"
)


@jit
def gather_of(call: int) -> int:
    """The address of the `KeyedGather`."""
    return call + 8 * KeyedCall.gather


@jit
def addition_of(call: int) -> int:
    """The address of the `Addition`."""
    return call + 8 * KeyedCall.addition


@jit
def set_variables(
    frame: int, call: int, table: int, index: int, initial: int, dim: int, item: int, column: int
) -> None:
    """Sets the variables of a call, or fails if they do not belong together.

    Args:
      table, index, initial: the addresses of their `SharedVariable`.
      dim, item: elements of a row, and bytes of an element.
    """
    check_index(frame, index, column)
    if failed(frame):
        return
    words = load(index, SharedVariable.data)
    check_rows(frame, table, words, dim * item, column)
    size = load(initial, SharedVariable.byte_count)
    if size < 2 * dim * item or size % (dim * item) != 0:
        _fail_initial(frame, column, size, dim * item, int64(0))
    if failed(frame):
        return
    args, addition = gather_of(call), addition_of(call)
    first = load(initial, SharedVariable.data)
    store(args, KeyedGather.index, words)
    store(args, KeyedGather.table, load(table, SharedVariable.data))
    store(args, KeyedGather.row_bytes, dim * item)
    store(args, KeyedGather.default, first)
    store(addition, Addition.table, load(table, SharedVariable.data))
    store(addition, Addition.samples, first + dim * item)
    store(addition, Addition.sample_count, size // (dim * item) - 1)
    store(addition, Addition.dim, dim)
    store(addition, Addition.item_bytes, item)


@jit
def begin_training(call: int) -> None:
    """Has keys noted as seen, in a step that is there already, or else counted by the index."""
    args, addition = gather_of(call), addition_of(call)
    store(args, KeyedGather.addition, addition)
    admission = load(load(args, KeyedGather.index), KeyIndex.admission)
    store(addition, Addition.admission, admission)
    clock = atomic_add(load(args, KeyedGather.index), KeyIndex.clock, int64(1)) + 1
    if load(addition, Addition.step) < 0:
        store(addition, Addition.step, clock)
    store(addition, Addition.step, min(load(addition, Addition.step), int64(2**31 - 1)))


@jit
def count_missing(call: int) -> int:
    """Counts the keys that were not found."""
    rows, missing_count = load(gather_of(call), KeyedGather.rows), int64(0)
    for k in range(load(call, KeyedCall.key_count)):
        missing_count += int64(load(rows, k) < 0)
    store(call, KeyedCall.missing_count, missing_count)
    return missing_count


@jit
def list_missing(call: int, missing: int) -> None:
    """Lists the keys that were not found, which are counted, at an address."""
    rows, number = load(gather_of(call), KeyedGather.rows), int64(0)
    for k in range(load(call, KeyedCall.key_count)):
        if load(rows, k) < 0:
            store(missing, number, int64(k))
            number += 1
    store(call, KeyedCall.missing, missing)


@jit
def add_listed(call: int) -> None:
    """Adds the keys that were not found, and gathers their rows."""
    args, count = gather_of(call), load(call, KeyedCall.missing_count)
    if count == 0:
        return
    keys, rows = load(args, KeyedGather.keys), load(args, KeyedGather.rows)
    index = load(args, KeyedGather.index)
    add_missing(index, keys, load(call, KeyedCall.key_count), rows, addition_of(call))
    copy_missing(args, count, load(call, KeyedCall.missing))


@jit
def check_room(frame: int, call: int, column: int) -> None:
    """Fails if keys found no room that do not wait for it."""
    index = load(gather_of(call), KeyedGather.index)
    refused = load(addition_of(call), Addition.refused_count)
    if refused > 0 and load(index, KeyIndex.waits) == 0:
        _fail_full(frame, column, refused, load(index, KeyIndex.capacity), int64(0))
