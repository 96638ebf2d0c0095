"""Variables that a kernel shares with others while it changes elements of them, as scatters do."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.ops.base.variables import end_status, find_variable, is_ok, let_go
from fusion.ops.tables.cpu.layout import AccessState, SharedVariable
from fusion.ops.tables.cpu_kernels.layout import MAX_ROWS, KeyIndex, index_bytes
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load_as, store, store_as
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.tensorflow.variable_access import UpdateAccess


def failure(code: int, text: str) -> Any:
    """A jitted function (frame, column, three numbers) that fails.

    Its column is the index of one that the message is about, or -1.
    """
    column_text = f": {text}"

    @jit
    def report(frame: int, column: int, first: int, second: int, third: int) -> None:
        if column < 0:
            op.fail(frame, code, text, first, second, third)
        else:
            op.fail_column(frame, code, column_text, column, first, second, third)

    return report


@jit
def share(frame: op.Frame, access: UpdateAccess, index: int, shared: SharedVariable) -> bool:
    """Shares the variable of an input; whether there is one. Then or not, `unshare` it.

    All that a kernel shares it shares in the same order: tables and what is of their dtype, then
    indices, so that two kernels cannot wait for each other.

    Args:
      access: the address of an `UpdateAccess`.
      index: the number of the input.
      shared: out, the address of a `SharedVariable`.
    """
    number = stack_words(int64(1))
    store_as(number, int64(0), np.int32(index), np.int32)
    return share_all(frame, access, number, int64(1), shared)


@jit
def share_all(
    frame: op.Frame, access: UpdateAccess, numbers: int, count: int, shared: SharedVariable
) -> bool:
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
        variable = shared[k]
        variable.access = access
        index = int64(load_as(numbers, k, np.int32))
        if not find_variable(
            frame, access, index, as_words(variable + 8 * SharedVariable.variable)
        ):
            return False
    status, vector = stack_words(int64(1)), stack_words(int64(3))
    # The std::vector<int> of the numbers of inputs.
    vector[0] = numbers
    vector[1] = numbers + 4 * count
    vector[2] = numbers + 4 * count
    ctx, holder = frame.context, shared.holder
    exclusive, sparse = int64(0), int64(1)
    call_at(access.lock, holder, ctx, exclusive, sparse, vector)
    shared.is_locked = 1
    for k in range(count):
        variable = shared[k]
        index = int64(load_as(numbers, k, np.int32))
        tensor = variable.tensor
        call_at(access.make_tensor, tensor)
        variable.has_tensor = 1
        call_at(access.read, status, ctx, index, exclusive, sparse, tensor)
        if not is_ok(status):
            call_at(access.fail, ctx, status)
            end_status(status)
            return False
        data = call_at(access.tensor_data, tensor)
        size = call_at(access.tensor_bytes, tensor)
        variable.data = data
        variable.byte_count = size
    return True


@jit
def unshare(shared: SharedVariable) -> None:
    """Ends what `share` has begun."""
    unshare_all(shared, int64(1))


@jit
def unshare_all(shared: SharedVariable, count: int) -> None:
    """Ends what `share_all` has begun."""
    access = shared.access
    for k in range(count):
        variable = shared[k]
        if variable.has_tensor != 0:
            call_at(access.end_tensor, variable.tensor)
    if shared.is_locked != 0:
        call_at(access.unlock, shared.holder)
    for k in range(count):
        variable = shared[k]
        if variable.variable != 0:
            let_go(access, as_words(variable + 8 * SharedVariable.variable), int64(1))


@jit
def share_index(frame: op.Frame, index: int, shared: SharedVariable) -> int:
    """Shares the variable of an input that is an index; its address, 0 if it is none.

    Then or not, `unshare` it.

    Args:
      index: the number of the input.
      shared: out, the address of a `SharedVariable`.
    """
    access = as_record(AccessState, frame.state).index_access
    if not share(frame, access, index, shared):
        return int64(0)
    check_index(frame, shared, int64(-1))
    return int64(0) if op.failed(frame) else shared.data


_index_bytes = jit(index_bytes)

_fail_index = failure(
    op.FAILED_PRECONDITION, "index has no EmbeddingKeyIndex, but %lld other words"
)
_fail_rows = failure(
    op.INVALID_ARGUMENT, "the variable has %lld bytes, but the index is of %lld rows of %lld bytes"
)


@jit
def check_index(frame: int, index: SharedVariable, column: int) -> None:
    """Fails if a shared variable is no index; column: see `failure`."""
    words = index.byte_count // 8
    if words >= KeyIndex.SIZE:
        capacity = as_record(KeyIndex, index.data).capacity
        if 1 <= capacity <= int64(MAX_ROWS) and words == _index_bytes(capacity) // 8:
            return
    _fail_index(frame, column, words, int64(0), int64(0))


@jit
def check_rows(
    frame: int, table: SharedVariable, index: KeyIndex, row_bytes: int, column: int
) -> None:
    """Fails if a shared variable has not the rows that an index at an address is of.

    Args:
      column: see `failure`.
    """
    size, capacity = table.byte_count, index.capacity
    if size != capacity * row_bytes:
        _fail_rows(frame, column, size, capacity, row_bytes)
