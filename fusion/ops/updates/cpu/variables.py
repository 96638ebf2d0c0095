"""Finds and locks the variables of a call, and prepares them for in-place changes."""

from __future__ import annotations

import numpy as np

from fusion.ops.base.variables import end_status, failure, find_variable, is_ok, let_go
from fusion.ops.updates.cpu.layout import UpdateState
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load, store_as
from fusion.runtime.native.pointers import as_words, stack_words
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, UpdateAccess, VariableAccess

_fail_twice = failure(op.INVALID_ARGUMENT, "the variable behind %s is there twice")
_fail_rows = failure(
    op.INVALID_ARGUMENT, "the variable behind %s has %lld elements, which are no rows of %lld"
)
_fail_size = failure(
    op.INVALID_ARGUMENT, "the variable behind %s has %lld elements, but the table %lld"
)


@jit
def find_all(frame: op.Frame, access: VariableAccess, count: int, variables: Words) -> bool:
    """Finds the variables of the first inputs, all different; whether there are such.

    Args:
      variables: out, their addresses [count], 0 for those that were not found; to be let go of.
    """
    for index in range(count):
        variables[index] = 0
    for index in range(count):
        if not find_variable(frame, access, int64(index), as_words(variables + 8 * index)):
            return False
        for other in range(index):
            if variables[other] == variables[index]:
                _fail_twice(frame, access, int64(index), int64(0), int64(0))
                return False
    return True


@jit
def let_go_of_all(access: VariableAccess, variables: Words, count: int) -> None:
    """Releases the variables that `find_all` has set."""
    variable_count = int64(0)
    while variable_count < count and variables[variable_count] != 0:
        variable_count += 1
    if variable_count > 0:
        let_go(access, variables, variable_count)


@jit
def _lock(
    ctx: int, access: UpdateAccess, numbers: int, count: int, sparse: int, holder: int
) -> None:
    """Locks variables: shared and ready for sparse access, or else exclusively.

    Args:
      numbers: of their inputs, int32 [count].
      holder: out, what holds the locks.
    """
    vector = stack_words(int64(3))  # a std::vector<int>
    vector[0] = numbers
    vector[1] = numbers + 4 * count
    vector[2] = numbers + 4 * count
    call_at(access.lock, holder, ctx, 1 - sparse, sparse, vector)


@jit
def lock_all(ctx: int, state: UpdateState, holder: int) -> None:
    """Locks all variables exclusively, so that no update of another is lost."""
    access, count = state.access, state.variable_count
    numbers, sparse_count = stack_words(count), int64(0)
    # As before a scatter: from now on who reads the variable has a copy.
    if state.sparse_count > 0:
        for index in range(count):
            if load(state, state.sparse + index) != 0:
                store_as(numbers, sparse_count, np.int32(index), np.int32)
                sparse_count += 1
        _lock(ctx, access, numbers, sparse_count, int64(1), holder)
        call_at(access.unlock, holder)
    for index in range(count):
        store_as(numbers, index, np.int32(index), np.int32)
    _lock(ctx, access, numbers, count, int64(0), holder)


@jit
def unlock_all(access: UpdateAccess, holder: int) -> None:
    """Unlocks what `lock_all` has locked."""
    call_at(access.unlock, holder)


@jit
def begin_tensors(access: UpdateAccess, tensors: int, count: int) -> None:
    """Begins tensors, which are to be ended before the variables are unlocked."""
    for index in range(count):
        call_at(access.make_tensor, tensors + 8 * OBJECT_WORDS * index)


@jit
def end_tensors(access: UpdateAccess, tensors: int, count: int) -> None:
    """Releases tensors, so that TensorFlow does not take a variable for shared."""
    for index in range(count):
        call_at(access.end_tensor, tensors + 8 * OBJECT_WORDS * index)


@jit
def take_all(frame: op.Frame, state: UpdateState, tensors: int, addresses: Words) -> int:
    """Makes locked variables ready to be changed; returns the number of their rows, or -1.

    Args:
      tensors: out, of the variables.
      addresses: out, of their elements, int64 [count].
    """
    access, dim = state.access, state.dim
    status, elements = stack_words(int64(1)), int64(0)
    for index in range(state.variable_count):
        tensor = tensors + 8 * OBJECT_WORDS * index
        sparse = load(state, state.sparse + index)
        ctx, is_locked = frame.context, int64(1)
        call_at(access.read, status, ctx, index, is_locked, sparse, tensor)
        if not is_ok(status):
            call_at(access.fail, ctx, status)
            end_status(status)
            return int64(-1)
        addresses[index] = call_at(access.tensor_data, tensor)
        size = call_at(access.tensor_bytes, tensor)
        size //= state.item_bytes
        if size % dim != 0:
            _fail_rows(frame, access, int64(index), size, dim)
            return int64(-1)
        if index > 0 and size != elements:
            _fail_size(frame, access, int64(index), size, elements)
            return int64(-1)
        elements = size
    return elements // dim
