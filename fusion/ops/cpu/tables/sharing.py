"""Variables that a kernel shares with others while it changes elements of them, as scatters do."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.keys.layout import MOST_ROWS, KeyIndex, index_bytes
from fusion.ops.cpu.tables.layout import AccessState, SharedVariable
from fusion.ops.cpu.variables import end_status, find_variable, is_ok, let_go
from fusion.runtime.native.errors import FAILED_PRECONDITION, INVALID_ARGUMENT, fail, fail_column
from fusion.runtime.native.frame import context, failed, kernel_state
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load, load_as, stack_words, store, store_as
from fusion.runtime.tensorflow.variable_access import UpdateAccess


def failure(code: int, text: str) -> Any:
    """A jitted function (frame, column, three numbers) that fails.

    Its column is the index of one that the message is about, or -1.
    """
    column_text = f": {text}"

    @jit
    def report(frame: int, column: int, first: int, second: int, third: int) -> None:
        if column < 0:
            fail(frame, code, text, first, second, third)
        else:
            fail_column(frame, code, column_text, column, first, second, third)

    return report


@jit
def share(frame: int, access: int, index: int, shared: int) -> bool:
    """Shares the variable of an input; whether there is one. Then or not, `unshare` it.

    All that a kernel shares it shares in the same order: tables and what is of their dtype, then
    indices, lest two kernels wait for each other.

    Args:
      access: the address of an `UpdateAccess`.
      index: the number of the input.
      shared: out, the address of a `SharedVariable`.
    """
    number = stack_words(int64(1))
    store_as(number, int64(0), np.int32(index), np.int32)
    return share_all(frame, access, number, int64(1), shared)


@jit
def share_all(frame: int, access: int, numbers: int, count: int, shared: int) -> bool:
    """Shares the variables of inputs, at once; whether there are such. Then or not, `unshare_all`.

    TensorFlow locks them in an order of its own, and one that is there twice only once.

    Args:
      access: the address of an `UpdateAccess`, of the dtype of all.
      numbers: the address of those of the inputs, int32 [count].
      count: how many there are, at least one.
      shared: out, the address of as many `SharedVariable`.
    """
    for k in range(SharedVariable.SIZE * count):
        store(shared, k, 0)
    for k in range(count):
        variable = shared + 8 * SharedVariable.SIZE * k
        store(variable, SharedVariable.access, access)
        index = int64(load_as(numbers, k, np.int32))
        if not find_variable(frame, access, index, variable + 8 * SharedVariable.variable):
            return False
    status, vector = stack_words(int64(1)), stack_words(int64(3))
    # The std::vector<int> of the numbers of inputs.
    store(vector, 0, numbers)
    store(vector, 1, numbers + 4 * count)
    store(vector, 2, numbers + 4 * count)
    ctx, holder = context(frame), shared + 8 * SharedVariable.holder
    exclusive, sparse = int64(0), int64(1)
    call_at(load(access, UpdateAccess.lock), holder, ctx, exclusive, sparse, vector)
    store(shared, SharedVariable.is_locked, 1)
    for k in range(count):
        variable = shared + 8 * SharedVariable.SIZE * k
        index = int64(load_as(numbers, k, np.int32))
        tensor = variable + 8 * SharedVariable.tensor
        call_at(load(access, UpdateAccess.make_tensor), tensor)
        store(variable, SharedVariable.has_tensor, 1)
        call_at(load(access, UpdateAccess.read), status, ctx, index, exclusive, sparse, tensor)
        if not is_ok(status):
            call_at(load(access, UpdateAccess.fail), ctx, status)
            end_status(status)
            return False
        data = call_at(load(access, UpdateAccess.tensor_data), tensor)
        size = call_at(load(access, UpdateAccess.tensor_bytes), tensor)
        store(variable, SharedVariable.data, data)
        store(variable, SharedVariable.byte_count, size)
    return True


@jit
def unshare(shared: int) -> None:
    """Ends what `share` has begun."""
    unshare_all(shared, int64(1))


@jit
def unshare_all(shared: int, count: int) -> None:
    """Ends what `share_all` has begun."""
    access = load(shared, SharedVariable.access)
    for k in range(count):
        variable = shared + 8 * SharedVariable.SIZE * k
        if load(variable, SharedVariable.has_tensor) != 0:
            call_at(load(access, UpdateAccess.end_tensor), variable + 8 * SharedVariable.tensor)
    if load(shared, SharedVariable.is_locked) != 0:
        call_at(load(access, UpdateAccess.unlock), shared + 8 * SharedVariable.holder)
    for k in range(count):
        variable = shared + 8 * SharedVariable.SIZE * k
        if load(variable, SharedVariable.variable) != 0:
            let_go(access, variable + 8 * SharedVariable.variable, int64(1))


@jit
def share_index(frame: int, index: int, shared: int) -> int:
    """Shares the variable of an input that is an index; its address, 0 if it is none.

    Then or not, `unshare` it.

    Args:
      index: the number of the input.
      shared: out, the address of a `SharedVariable`.
    """
    access = kernel_state(frame) + 8 * AccessState.index_access
    if not share(frame, access, index, shared):
        return int64(0)
    check_index(frame, shared, int64(-1))
    return int64(0) if failed(frame) else load(shared, SharedVariable.data)


_index_bytes = jit(index_bytes)

_fail_index = failure(FAILED_PRECONDITION, "index has no EmbeddingKeyIndex, but %lld other words")
_fail_rows = failure(
    INVALID_ARGUMENT,
    "the variable has %lld bytes, but the index is of %lld rows of %lld bytes",
)


@jit
def check_index(frame: int, index: int, column: int) -> None:
    """Fails if a shared variable is no index; column: see `failure`."""
    words = load(index, SharedVariable.byte_count) // 8
    if words >= KeyIndex.SIZE:
        capacity = load(load(index, SharedVariable.data), KeyIndex.capacity)
        if 1 <= capacity <= int64(MOST_ROWS) and words == _index_bytes(capacity) // 8:
            return
    _fail_index(frame, column, words, int64(0), int64(0))


@jit
def check_rows(frame: int, table: int, index: int, row_bytes: int, column: int) -> None:
    """Fails if a shared variable has not the rows that an index at an address is of.

    Args:
      column: see `failure`.
    """
    size, capacity = load(table, SharedVariable.byte_count), load(index, KeyIndex.capacity)
    if size != capacity * row_bytes:
        _fail_rows(frame, column, size, capacity, row_bytes)
