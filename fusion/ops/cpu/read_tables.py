"""ReadEmbeddingTables, on any device: nothing of it runs anywhere but on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.runtime.native.errors import FAILED_PRECONDITION, INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import context, kernel_state
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import (
    c_free,
    c_malloc,
    call_at,
    load,
    load_as,
    stack_words,
    store,
)
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status, tf_num_inputs
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, VariableAccess


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body."""

    def body(frame: int) -> None:
        ctx, functions = context(frame), kernel_state(frame) + 8 * State.SIZE
        words = stack_words(6 + 2 * OBJECT_WORDS)
        for index in range(int64(tf_num_inputs(ctx))):
            if not _share(frame, functions, int64(index), words):
                return

    return body


def _error(code: int, message: str) -> Any:
    """An error whose message has a handle for its first %s, and the op's dtype for a second."""

    @jit
    def report(frame: int, functions: int, handle: int, text: int) -> None:
        """`text` is memory for a std::string, which has 16 bytes of its own behind its first 16."""
        call_at(load(functions, VariableAccess.describe), text, handle)
        fail(frame, code, message, load(text, 0), functions + 8 * VariableAccess.dtype_name)
        if load(text, 0) != text + 16:
            c_free(load(text, 0))

    return report


_fail_missing = _error(
    FAILED_PRECONDITION,
    "there is no variable behind %s: it is not initialized, or was deleted",
)
_fail_dtype = _error(INVALID_ARGUMENT, "the variable behind %s is not of dtype %s")


@jit
def _is_ok(status: int) -> bool:
    """In older versions and in newer ones."""
    return load(status, 0) == 0 or load(status, 0) == 1


@jit
def _end_status(status: int) -> None:
    """An absl::Status is all that a TF_Status has."""
    owner = tf_new_status()
    store(owner, 0, load(status, 0))
    tf_delete_status(owner)


@jit
def _share(frame: int, functions: int, index: int, words: int) -> bool:
    """Makes the tensor of a variable an output; returns whether there is one."""
    ctx = context(frame)
    status, variable, tensor = words, words + 8, words + 8 * (6 + OBJECT_WORDS)
    handle = call_at(load(functions, VariableAccess.handle_from_input), ctx, index)
    call_at(load(functions, VariableAccess.find), status, ctx, handle, variable)
    if not _is_ok(status):
        _end_status(status)
        _fail_missing(frame, functions, handle, tensor)
        return False
    dtype = load_as(
        load(variable, 0) + load(functions, VariableAccess.dtype_offset), int64(0), np.uint8
    )
    is_shared = dtype == load(functions, VariableAccess.dtype)
    if is_shared:
        is_shared = _share_found(ctx, functions, index, words)
    else:
        _fail_dtype(frame, functions, handle, tensor)
    _let_go(functions, load(variable, 0), words + 48)
    return is_shared


@jit
def _share_found(ctx: int, functions: int, index: int, words: int) -> bool:
    """Makes its tensor an output, under a lock; returns whether there is one."""
    status, numbers, number = words, words + 16, words + 40
    holder, tensor = words + 48, words + 8 * (6 + OBJECT_WORDS)
    # The std::vector<int> of the number of the input.
    store(number, 0, index)
    store(numbers, 0, number)
    store(numbers, 1, number + 4)
    store(numbers, 2, number + 4)
    exclusive, sparse = int64(0), int64(1)
    call_at(load(functions, VariableAccess.lock), holder, ctx, exclusive, sparse, numbers)
    call_at(load(functions, VariableAccess.make_tensor), tensor)
    call_at(load(functions, VariableAccess.read), status, ctx, index, exclusive, sparse, tensor)
    call_at(load(functions, VariableAccess.unlock), holder)
    is_shared = _is_ok(status)
    if is_shared:
        call_at(load(functions, VariableAccess.set_output), ctx, index, tensor)
    else:
        call_at(load(functions, VariableAccess.fail), ctx, status)
        _end_status(status)
    call_at(load(functions, VariableAccess.end_tensor), tensor)
    return is_shared


@jit
def _let_go(functions: int, variable: int, holder: int) -> None:
    """Gives back what `VariableAccess.find` has held.

    A holder without locks lets go of its variables, whose first member is a std::vector<Var*>.
    """
    for k in range(OBJECT_WORDS):
        store(holder, k, 0)
    variable_at = c_malloc(8)
    store(variable_at, 0, variable)
    store(holder, 0, variable_at)
    store(holder, 1, variable_at + 8)
    store(holder, 2, variable_at + 8)
    call_at(load(functions, VariableAccess.unlock), holder)
