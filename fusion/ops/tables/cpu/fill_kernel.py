"""FillEmbeddingSlot on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.ops.tables.cpu.layout import AccessState, SharedVariable
from fusion.ops.tables.cpu.sharing import check_index, check_rows, share, unshare
from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.ops.tables.cpu_kernels.rows import fill_rows
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs.
_SLOT, _INDEX, _VALUES = range(3)


@jit
def _fill(frame: op.Frame, slot: SharedVariable, index: SharedVariable, values: int) -> None:
    """What is done while the variables are shared."""
    state = as_record(AccessState, frame.state)
    dim, item = state.dim, state.item_bytes
    words = as_record(KeyIndex, index.data)
    check_index(frame, index, int64(-1))
    if not op.failed(frame):
        check_rows(frame, slot, words, dim * item, int64(-1))
    count = element_count(values)
    if count != dim and count != 1:
        text = "values has %lld elements, not 1 or %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, count, dim)
    filled = as_words(op.new_output(frame, int64(0), int64(1), int64(1), int64(1), int64(8)))
    if op.failed(frame):
        return
    row = stack_words(dim)
    for column in range(dim):
        source = tf_tensor_data(values) + (column * item if count == dim else int64(0))
        c_memcpy(row + column * item, source, item)
    number, into = state.number, slot.data
    filled[0] = fill_rows(words, number, into, row, dim * item)


def fill(frame: op.Frame) -> None:
    """The kernel body."""
    tensors, state = stack_words(int64(1)), as_record(AccessState, frame.state)
    slot = stack_record(SharedVariable)
    index = stack_record(SharedVariable)
    tensors[0] = 0
    clear(slot)
    values = take(frame, tensors, int64(_VALUES), int64(0))
    if not op.failed(frame):
        if share(frame, state.table_access, int64(_SLOT), slot):
            if share(frame, state.index_access, int64(_INDEX), index):
                _fill(frame, slot, index, values)
            unshare(index)
        unshare(slot)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return fill
