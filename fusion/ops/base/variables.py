"""Variables behind the handles that an op is given.

`access` is the address of a `fusion.runtime.tensorflow.variable_access.VariableAccess`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, call_at, load_as
from fusion.runtime.native.pointers import as_words, stack_words
from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, VariableAccess


def failure(code: int, message: str) -> Any:
    """A jitted function (frame, access, index, first, second) that fails about a variable.

    Args:
      message: has the handle for its first %s, then two numbers or C strings.
    """

    @jit
    def report(
        frame: op.Frame, access: VariableAccess, index: int, first: int, second: int
    ) -> None:
        # A std::string, which has 16 bytes of its own behind its first 16.
        text = stack_words(int64(OBJECT_WORDS))
        handle = call_at(access.handle_from_input, frame.context, index)
        call_at(access.describe, text, handle)
        op.fail(frame, code, message, text[0], first, second)
        if text[0] != text + 16:
            c_free(text[0])

    return report


_fail_missing = failure(
    op.FAILED_PRECONDITION, "there is no variable behind %s: it is not initialized, or was deleted"
)
_fail_dtype = failure(op.INVALID_ARGUMENT, "the variable behind %s is not of dtype %s")


@jit
def is_ok(status: Words) -> bool:
    """In older versions of absl::Status and in newer ones."""
    return status[0] == 0 or status[0] == 1


@jit
def end_status(status: Words) -> None:
    """An absl::Status is all that a TF_Status has."""
    owner = as_words(tf_new_status())
    owner[0] = status[0]
    tf_delete_status(owner)


@jit
def find_variable(frame: op.Frame, access: VariableAccess, index: int, variable: Words) -> bool:
    """Finds the variable of an input, of the right dtype; whether there is one. It is held then.

    Args:
      variable: out, its address, to be let go of; 0 for none.
    """
    status, ctx = stack_words(int64(1)), frame.context
    handle = call_at(access.handle_from_input, ctx, index)
    variable[0] = 0
    call_at(access.find, status, ctx, handle, variable)
    if not is_ok(status):
        end_status(status)
        variable[0] = 0
        _fail_missing(frame, access, index, int64(0), int64(0))
        return False
    address = variable[0] + access.dtype_offset
    if load_as(address, int64(0), np.uint8) == access.dtype:
        return True
    _fail_dtype(frame, access, index, access.dtype_name, int64(0))
    return False


@jit
def let_go(access: VariableAccess, variables: Words, count: int) -> None:
    """Gives back variables that `find_variable` has held.

    A holder without locks lets go of its variables, whose first member is a std::vector<Var*>.
    """
    holder = stack_words(int64(OBJECT_WORDS))
    for k in range(OBJECT_WORDS):
        holder[k] = 0
    memory = as_words(c_malloc(8 * count))
    for k in range(count):
        memory[k] = variables[k]
    holder[0] = memory
    holder[1] = memory + 8 * count
    holder[2] = memory + 8 * count
    call_at(access.unlock, holder)
