"""What becomes of the keys of one table in a call: found, gathered and, in training, added.

`call` is the address of a `KeyedCall`; `column` see `sharing.failure`.
"""

from __future__ import annotations

from fusion.ops.tables.cpu.layout import KeyedCall, SharedVariable
from fusion.ops.tables.cpu.sharing import check_index, check_rows, failure
from fusion.ops.tables.cpu_kernels.gather import copy_missing
from fusion.ops.tables.cpu_kernels.index import add_missing
from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.atomic import atomic_add
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record

#: Keys that are worth another thread, and those of a task at least.
PARALLEL_KEYS, TASK_KEYS = 4096, 512

#: Tasks for each thread.
TASKS_PER_THREAD = 4

_fail_initial = failure(
    op.INVALID_ARGUMENT, "initial has %lld bytes, which are no two or more rows of %lld"
)
_fail_full = failure(
    op.RESOURCE_EXHAUSTED, "there is no room for %lld keys more than the capacity of %lld rows"
)


@jit
def set_variables(
    frame: op.Frame,
    call: KeyedCall,
    table: SharedVariable,
    index: SharedVariable,
    initial: SharedVariable,
    dim: int,
    item: int,
    column: int,
) -> None:
    """Sets the variables of a call, or fails if they do not belong together.

    Args:
      table, index, initial: the addresses of their `SharedVariable`.
      dim, item: elements of a row, and bytes of an element.
    """
    check_index(frame, index, column)
    if op.failed(frame):
        return
    words = as_record(KeyIndex, index.data)
    check_rows(frame, table, words, dim * item, column)
    size = initial.byte_count
    if size < 2 * dim * item or size % (dim * item) != 0:
        _fail_initial(frame, column, size, dim * item, int64(0))
    if op.failed(frame):
        return
    args, addition = call.gather, call.addition
    first = initial.data
    args.index = words
    args.table = table.data
    args.row_bytes = dim * item
    args.default = first
    addition.table = table.data
    addition.samples = first + dim * item
    addition.sample_count = size // (dim * item) - 1
    addition.dim = dim
    addition.item_bytes = item


@jit
def begin_training(call: KeyedCall) -> None:
    """Has keys noted as seen, in a step that is there already, or else counted by the index."""
    args, addition = call.gather, call.addition
    args.addition = addition
    admission = args.index.admission
    addition.admission = admission
    clock = atomic_add(args.index, KeyIndex.clock, int64(1)) + 1
    if addition.step < 0:
        addition.step = clock
    addition.step = min(addition.step, int64(2**31 - 1))


@jit
def count_missing(call: KeyedCall) -> int:
    """Counts the keys that were not found."""
    rows, missing_count = call.gather.rows, int64(0)
    for k in range(call.key_count):
        missing_count += int64(rows[k] < 0)
    call.missing_count = missing_count
    return missing_count


@jit
def list_missing(call: KeyedCall, missing: Words) -> None:
    """Lists the keys that were not found, which are counted, at an address."""
    rows, number = call.gather.rows, int64(0)
    for k in range(call.key_count):
        if rows[k] < 0:
            missing[number] = int64(k)
            number += 1
    call.missing = missing


@jit
def add_listed(call: KeyedCall) -> None:
    """Adds the keys that were not found, and gathers their rows."""
    args, count = call.gather, call.missing_count
    if count == 0:
        return
    keys, rows = args.keys, args.rows
    index = args.index
    add_missing(index, keys, call.key_count, rows, call.addition)
    copy_missing(args, count, call.missing)


@jit
def check_room(frame: int, call: KeyedCall, column: int) -> None:
    """Fails if keys found no room that do not wait for it."""
    index = call.gather.index
    refused = call.addition.refused_count
    if refused > 0 and index.waits == 0:
        _fail_full(frame, column, refused, index.capacity, int64(0))
