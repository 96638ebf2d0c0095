"""ReadEmbeddingTables, which runs on the host for any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.base.variables import end_status, find_variable, is_ok, let_go
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.tensorflow.c_api import tf_num_inputs
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import OBJECT_WORDS, VariableAccess


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""

    def body(frame: op.Frame) -> None:
        ctx = frame.context
        access = as_record(VariableAccess, frame.state + 8 * op.State.SIZE)
        words = stack_words(6 + 2 * OBJECT_WORDS)
        for index in range(int64(tf_num_inputs(ctx))):
            if not _share(frame, access, int64(index), words):
                return

    return body


@jit
def _share(frame: op.Frame, access: VariableAccess, index: int, words: Words) -> bool:
    """Finds a variable and makes its tensor an output; returns whether there is one."""
    is_shared = find_variable(frame, access, index, as_words(words + 8))
    if is_shared:
        is_shared = _share_variable(frame.context, access, index, words)
    if words[1] != 0:
        let_go(access, as_words(words + 8), int64(1))
    return is_shared


@jit
def _share_variable(ctx: int, access: VariableAccess, index: int, words: int) -> bool:
    """Makes the tensor of a variable an output, under a lock; returns whether there is one."""
    status, numbers, number = as_words(words), as_words(words + 16), as_words(words + 40)
    holder, tensor = words + 48, words + 8 * (6 + OBJECT_WORDS)
    # The std::vector<int> of the number of the input.
    number[0] = index
    numbers[0] = number
    numbers[1] = number + 4
    numbers[2] = number + 4
    exclusive, sparse = int64(0), int64(1)
    call_at(access.lock, holder, ctx, exclusive, sparse, numbers)
    call_at(access.make_tensor, tensor)
    call_at(access.read, status, ctx, index, exclusive, sparse, tensor)
    call_at(access.unlock, holder)
    is_shared = is_ok(status)
    if is_shared:
        call_at(access.set_output, ctx, index, tensor)
    else:
        call_at(access.fail, ctx, status)
        end_status(status)
    call_at(access.end_tensor, tensor)
    return is_shared
