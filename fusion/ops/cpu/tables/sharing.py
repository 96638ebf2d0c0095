"""Variables that a kernel shares with others while it changes elements of them, as scatters do."""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.keys.layout import KeyIndex
from fusion.ops.cpu.tables.layout import AccessState, SharedVariable
from fusion.ops.cpu.variables import end_status, find_variable, is_ok, let_go
from fusion.runtime.native.errors import FAILED_PRECONDITION, INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import context, failed, kernel_state
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load, stack_words, store, store_as
from fusion.runtime.tensorflow.variable_access import UpdateAccess


@jit
def share(frame: int, access: int, index: int, shared: int) -> bool:
    """Shares the variable of an input; whether there is one. Then or not, `unshare` it.

    All that a kernel shares it shares in the order of its inputs: tables, then what belongs to
    them, lest two kernels wait for each other.

    Args:
      access: the address of an `UpdateAccess`.
      index: the number of the input.
      shared: out, the address of a `SharedVariable`.
    """
    store(shared, SharedVariable.access, access)
    store(shared, SharedVariable.is_locked, 0)
    if not find_variable(frame, access, index, shared + 8 * SharedVariable.variable):
        return False
    status, number, numbers = stack_words(int64(1)), stack_words(int64(1)), stack_words(int64(3))
    # The std::vector<int> of the number of the input.
    store_as(number, int64(0), np.int32(index), np.int32)
    store(numbers, 0, number)
    store(numbers, 1, number + 4)
    store(numbers, 2, number + 4)
    ctx, holder = context(frame), shared + 8 * SharedVariable.holder
    tensor, exclusive, sparse = shared + 8 * SharedVariable.tensor, int64(0), int64(1)
    call_at(load(access, UpdateAccess.lock), holder, ctx, exclusive, sparse, numbers)
    call_at(load(access, UpdateAccess.make_tensor), tensor)
    store(shared, SharedVariable.is_locked, 1)
    call_at(load(access, UpdateAccess.read), status, ctx, index, exclusive, sparse, tensor)
    if not is_ok(status):
        call_at(load(access, UpdateAccess.fail), ctx, status)
        end_status(status)
        return False
    data = call_at(load(access, UpdateAccess.tensor_data), tensor)
    size = call_at(load(access, UpdateAccess.tensor_bytes), tensor)
    store(shared, SharedVariable.data, data)
    store(shared, SharedVariable.byte_count, size)
    return True


@jit
def unshare(shared: int) -> None:
    """Ends what `share` has begun."""
    access = load(shared, SharedVariable.access)
    if load(shared, SharedVariable.is_locked) != 0:
        call_at(load(access, UpdateAccess.end_tensor), shared + 8 * SharedVariable.tensor)
        call_at(load(access, UpdateAccess.unlock), shared + 8 * SharedVariable.holder)
    if load(shared, SharedVariable.variable) != 0:
        let_go(access, shared + 8 * SharedVariable.variable, int64(1))


@jit
def share_index(frame: int, index: int, shared: int) -> int:
    """Shares the variable of an input that is an index; its address, 0 if it is none.

    Then or not, `unshare` it.

    Args:
      index: the number of the input.
      shared: out, the address of a `SharedVariable`.
    """
    for k in range(SharedVariable.SIZE):
        store(shared, k, 0)
    access = kernel_state(frame) + 8 * AccessState.index_access
    if not share(frame, access, index, shared):
        return int64(0)
    check_index(frame, shared)
    return int64(0) if failed(frame) else load(shared, SharedVariable.data)


@jit
def check_index(frame: int, index: int) -> None:
    """Fails if a shared variable is no index."""
    words = load(index, SharedVariable.byte_count) // 8
    if words < KeyIndex.SIZE or load(load(index, SharedVariable.data), KeyIndex.capacity) < 1:
        text = "index has no EmbeddingKeyIndex, but %lld other words"
        fail(frame, FAILED_PRECONDITION, text, words)


@jit
def check_rows(frame: int, table: int, index: int, row_bytes: int) -> None:
    """Fails if a shared variable has not the rows that an index at an address is of."""
    size, capacity = load(table, SharedVariable.byte_count), load(index, KeyIndex.capacity)
    if size != capacity * row_bytes:
        text = "the variable has %lld bytes, but the index is of %lld rows of %lld bytes"
        fail(frame, INVALID_ARGUMENT, text, size, capacity, row_bytes)
