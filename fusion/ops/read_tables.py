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

import tensorflow as tf

from fusion.ops.common import FLOATS, TABLE_ATTR
from fusion.runtime.spec import Arg, Attr, OpSpec


def read_tables(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body, for any device: nothing of it runs anywhere but on the host."""
    from fusion.runtime import variable_access as access
    from fusion.runtime.c_api import tf_num_inputs
    from fusion.runtime.jit import int64, jit
    from fusion.runtime.layout import STATE_WORDS
    from fusion.runtime.memory import c_malloc, call_at, load, stack_words, store
    from fusion.runtime.native import context, kernel_state

    is_ok, end_status, fail_missing = _errors()

    @jit
    def share(frame: int, functions: int, place: int, words: int) -> bool:
        """Makes the tensor of a variable an output, under a lock; returns whether there is one."""
        ctx = context(frame)
        status, found, numbers, number = words, words + 8, words + 16, words + 40
        holder, tensor = words + 48, words + 8 * (6 + access.OBJECT_WORDS)
        handle = call_at(load(functions, access.HANDLE), ctx, place)
        call_at(load(functions, access.FIND), status, ctx, handle, found)
        if not is_ok(status):
            end_status(status)
            fail_missing(frame, functions, handle, tensor)
            return False
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
        # What FIND has found is held until a holder without locks lets go of it, whose first
        # member is a std::vector<Var*>.
        for k in range(access.OBJECT_WORDS):
            store(holder, k, 0)
        found_at = c_malloc(8)
        store(found_at, 0, load(found, 0))
        store(holder, 0, found_at)
        store(holder, 1, found_at + 8)
        store(holder, 2, found_at + 8)
        call_at(load(functions, access.UNLOCK), holder)
        sound = is_ok(status)
        if sound:
            call_at(load(functions, access.SET_OUTPUT), ctx, place, tensor)
        else:
            call_at(load(functions, access.FAIL), ctx, status)
            end_status(status)
        call_at(load(functions, access.END_TENSOR), tensor)
        return sound

    def body(frame: int) -> None:
        ctx, functions = context(frame), kernel_state(frame) + 8 * STATE_WORDS
        words = stack_words(6 + 2 * access.OBJECT_WORDS)
        for place in range(int64(tf_num_inputs(ctx))):
            if not share(frame, functions, int64(place), words):
                return

    return body


def _errors() -> tuple[Any, Any, Any]:
    """Whether there is an error, the end of its status, and saying that there is no variable."""
    from fusion.runtime import variable_access as access
    from fusion.runtime.c_api import tf_delete_status, tf_new_status
    from fusion.runtime.jit import jit
    from fusion.runtime.memory import c_free, call_at, load, store
    from fusion.runtime.native import FAILED_PRECONDITION, fail

    @jit
    def is_ok(status: int) -> bool:
        """Whether an absl::Status, in older versions and in newer ones, tells of no error."""
        return load(status, 0) == 0 or load(status, 0) == 1

    @jit
    def end_status(status: int) -> None:
        """Ends an absl::Status, which is all that a TF_Status has."""
        owner = tf_new_status()
        store(owner, 0, load(status, 0))
        tf_delete_status(owner)

    @jit
    def fail_missing(frame: int, functions: int, handle: int, text: int) -> None:
        """Says, as ReadVariableOp does, that there is no variable behind a handle.

        The text is room for a std::string, whose own memory has 16 bytes behind its first 16.
        """
        call_at(load(functions, access.DESCRIBE), text, handle)
        message = "there is no variable behind %s: it is not initialized, or was deleted"
        fail(frame, FAILED_PRECONDITION, message, load(text, 0))
        if load(text, 0) != text + 16:
            c_free(load(text, 0))

    return is_ok, end_status, fail_missing


def _state(values: Mapping[str, Any], device: str) -> list[int]:
    from fusion.runtime import variable_access

    return variable_access.functions(values["T"], device)


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """That of reading a variable: what comes goes on, IndexedSlices as they are."""
    return list(grads)


SPEC = OpSpec(
    name="ReadEmbeddingTables",
    doc="Reads variables without copying them, to look up rows in what it gives.\n\n"
    "Rows that are changed one by one meanwhile change in the result too; a variable that is\n"
    "assigned as a whole leaves the result as it was. A variable that was never assigned is a\n"
    "FailedPreconditionError, as with ReadVariableOp.",
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
