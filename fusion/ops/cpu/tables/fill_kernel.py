"""FillEmbeddingSlot on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.cpu_ops.keys.rows import fill_rows
from fusion.ops.cpu.tables.inputs import element_count, release, take
from fusion.ops.cpu.tables.layout import AccessState, SharedVariable
from fusion.ops.cpu.tables.sharing import check_index, check_rows, share, unshare
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import failed, kernel_state, new_output
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcpy, load, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs.
_SLOT, _INDEX, _VALUES = range(3)


@jit
def _fill(frame: int, slot: int, index: int, values: int) -> None:
    """What is done while the variables are shared."""
    state = kernel_state(frame)
    dim, item = load(state, AccessState.dim), load(state, AccessState.item_bytes)
    words = load(index, SharedVariable.data)
    check_index(frame, index, int64(-1))
    if not failed(frame):
        check_rows(frame, slot, words, dim * item, int64(-1))
    count = element_count(values)
    if count != dim and count != 1:
        text = "values has %lld elements, not 1 or %lld"
        fail(frame, INVALID_ARGUMENT, text, count, dim)
    filled = new_output(frame, int64(0), int64(1), int64(1), int64(1), int64(8))
    if failed(frame):
        return
    row = stack_words(dim)
    for column in range(dim):
        source = tf_tensor_data(values) + (column * item if count == dim else int64(0))
        c_memcpy(row + column * item, source, item)
    number, into = load(state, AccessState.number), load(slot, SharedVariable.data)
    store(filled, 0, fill_rows(words, number, into, row, dim * item))


def fill(frame: int) -> None:
    """The kernel body."""
    tensors, state = stack_words(int64(1)), kernel_state(frame)
    slot, index = stack_words(SharedVariable.SIZE), stack_words(SharedVariable.SIZE)
    store(tensors, 0, 0)
    for k in range(SharedVariable.SIZE):
        store(slot, k, 0)
    values = take(frame, tensors, int64(_VALUES), int64(0))
    if not failed(frame):
        if share(frame, state + 8 * AccessState.table_access, int64(_SLOT), slot):
            if share(frame, state + 8 * AccessState.index_access, int64(_INDEX), index):
                _fill(frame, slot, index, values)
            unshare(index)
        unshare(slot)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body."""
    return fill
