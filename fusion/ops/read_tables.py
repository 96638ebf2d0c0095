"""ReadEmbeddingTables: variables whose rows may change while they are looked up, without a copy.

ReadVariableOp copies a variable whole once its rows have been gathered or changed one by one, and
where it does not, the next change of a row copies it. This op takes part in TensorFlow's sparse
access instead, as ResourceGather and the sparse optimizers do: nobody copies anything, and a row
that is changed while it is looked up may be read half changed, as by a gather beside Keras's
optimizers. What replaces a variable as a whole leaves this op's result as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import FLOATS, TABLE_ATTR


def read_tables(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body, for any device: nothing of it runs anywhere but on the host."""
    from fusion.runtime.native.frame import (
        FAILED_PRECONDITION,
        INVALID_ARGUMENT,
        context,
        kernel_state,
    )
    from fusion.runtime.native.jit import int64, jit
    from fusion.runtime.native.memory import call_at, load, load_as, stack_words
    from fusion.runtime.tensorflow import variable_access as access
    from fusion.runtime.tensorflow.c_api import tf_num_inputs
    from fusion.runtime.tensorflow.layout import STATE_WORDS

    is_ok, end_status = _status()
    share_found, let_go = _shared(is_ok, end_status)
    fail_missing = _error(
        FAILED_PRECONDITION,
        "there is no variable behind %s: it is not initialized, or was deleted",
    )
    fail_dtype = _error(INVALID_ARGUMENT, "the variable behind %s is not of dtype %s")

    @jit
    def share(frame: int, functions: int, place: int, words: int) -> bool:
        """Makes the tensor of a variable an output; returns whether there is one."""
        ctx = context(frame)
        status, found, tensor = words, words + 8, words + 8 * (6 + access.OBJECT_WORDS)
        handle = call_at(load(functions, access.HANDLE), ctx, place)
        call_at(load(functions, access.FIND), status, ctx, handle, found)
        if not is_ok(status):
            end_status(status)
            fail_missing(frame, functions, handle, tensor)
            return False
        dtype = load_as(load(found, 0) + load(functions, access.DTYPE_PLACE), int64(0), np.uint8)
        sound = dtype == load(functions, access.DTYPE)
        if sound:
            sound = share_found(ctx, functions, place, words)
        else:
            fail_dtype(frame, functions, handle, tensor)
        let_go(functions, load(found, 0), words + 48)
        return sound

    def body(frame: int) -> None:
        ctx, functions = context(frame), kernel_state(frame) + 8 * STATE_WORDS
        words = stack_words(6 + 2 * access.OBJECT_WORDS)
        for index in range(int64(tf_num_inputs(ctx))):
            if not share(frame, functions, int64(index), words):
                return

    return body


def _shared(is_ok: Any, end_status: Any) -> tuple[Any, Any]:
    """Sharing a variable of the right dtype, and the end of holding one."""
    from fusion.runtime.native.jit import int64, jit
    from fusion.runtime.native.memory import c_malloc, call_at, load, store
    from fusion.runtime.tensorflow import variable_access as access

    @jit
    def share_found(ctx: int, functions: int, place: int, words: int) -> bool:
        """Makes its tensor an output, under a lock; returns whether there is one."""
        status, numbers, number = words, words + 16, words + 40
        holder, tensor = words + 48, words + 8 * (6 + access.OBJECT_WORDS)
        # The std::vector<int> of the number of the input.
        store(number, 0, place)
        store(numbers, 0, number)
        store(numbers, 1, number + 4)
        store(numbers, 2, number + 4)
        exclusive, sparse = int64(0), int64(1)
        call_at(load(functions, access.LOCK), holder, ctx, exclusive, sparse, numbers)
        call_at(load(functions, access.MAKE_TENSOR), tensor)
        call_at(load(functions, access.READ), status, ctx, place, exclusive, sparse, tensor)
        call_at(load(functions, access.UNLOCK), holder)
        sound = is_ok(status)
        if sound:
            call_at(load(functions, access.SET_OUTPUT), ctx, place, tensor)
        else:
            call_at(load(functions, access.FAIL), ctx, status)
            end_status(status)
        call_at(load(functions, access.END_TENSOR), tensor)
        return sound

    @jit
    def let_go(functions: int, variable: int, holder: int) -> None:
        """Gives back what FIND has held.

        A holder without locks lets go of its variables, whose first member is a std::vector<Var*>.
        """
        for k in range(access.OBJECT_WORDS):
            store(holder, k, 0)
        found_at = c_malloc(8)
        store(found_at, 0, variable)
        store(holder, 0, found_at)
        store(holder, 1, found_at + 8)
        store(holder, 2, found_at + 8)
        call_at(load(functions, access.UNLOCK), holder)

    return share_found, let_go


def _status() -> tuple[Any, Any]:
    """Whether an absl::Status tells of no error, and its end."""
    from fusion.runtime.native.jit import jit
    from fusion.runtime.native.memory import load, store
    from fusion.runtime.tensorflow.c_api import tf_delete_status, tf_new_status

    @jit
    def is_ok(status: int) -> bool:
        """In older versions and in newer ones."""
        return load(status, 0) == 0 or load(status, 0) == 1

    @jit
    def end_status(status: int) -> None:
        """An absl::Status is all that a TF_Status has."""
        owner = tf_new_status()
        store(owner, 0, load(status, 0))
        tf_delete_status(owner)

    return is_ok, end_status


def _error(code: int, message: str) -> Any:
    """An error whose message has a handle for its first %s, and the op's dtype for a second."""
    from fusion.runtime.native.frame import fail
    from fusion.runtime.native.jit import jit
    from fusion.runtime.native.memory import c_free, call_at, load
    from fusion.runtime.tensorflow import variable_access as access

    @jit
    def report(frame: int, functions: int, handle: int, text: int) -> None:
        """The text is room for a std::string, which has 16 bytes of its own behind its first 16."""
        call_at(load(functions, access.DESCRIBE), text, handle)
        fail(frame, code, message, load(text, 0), functions + 8 * access.DTYPE_NAME)
        if load(text, 0) != text + 16:
            c_free(load(text, 0))

    return report


def _state(values: Mapping[str, Any], device: str) -> list[int]:
    from fusion.runtime.tensorflow import variable_access

    return variable_access.functions(values["T"], device)


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """That of reading a variable: what comes goes on, IndexedSlices as they are."""
    return list(grads)


SPEC = OpSpec(
    name=names.READ_TABLES,
    doc="Reads variables without copying them, to look up rows in what it gives.\n\n"
    "Rows that are changed one by one meanwhile change in the result too; a variable that is\n"
    "assigned as a whole leaves the result as it was. A variable that was never assigned is a\n"
    "FailedPreconditionError and one of another dtype an InvalidArgumentError, as with\n"
    "ReadVariableOp.",
    inputs=(
        Arg("handles", "resource", "[...]", length="num_tables", doc="of variables", on_host=True),
    ),
    outputs=(Arg("tables", "T", "[?, ?]", length="num_tables"),),
    attrs=(
        Attr("num_tables", "int", minimum=1, doc="number of variables"),
        TABLE_ATTR,
    ),
    kernels={"CPU": read_tables, "GPU": read_tables},
    kernel_types={"T": FLOATS},
    custom=_state,
    gradient=_gradient,
    is_stateful=True,
)
