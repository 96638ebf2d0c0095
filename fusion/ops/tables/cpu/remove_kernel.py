"""RemoveEmbeddingKeys on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.ops.tables.cpu.layout import SharedVariable
from fusion.ops.tables.cpu.sharing import share_index, unshare
from fusion.ops.tables.cpu_kernels.index import remove
from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.ops.tables.cpu_kernels.rows import age_rows, release_rows, retire_row
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs.
_INDEX, _KEYS, _RELEASE = range(3)
_TENSORS = 2


@jit
def _remove(frame: op.Frame, index: KeyIndex, tensors: Words) -> None:
    """What is done while the index is shared."""
    keys, count = as_words(tf_tensor_data(tensors[0])), element_count(tensors[0])
    if element_count(tensors[1]) != 1:
        text = "release must have one element, but has %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, element_count(tensors[1]))
        return
    op.count_rows(frame, count)
    rows = as_words(op.new_output(frame, int64(0), int64(1), count, int64(1), int64(8)))
    if op.failed(frame):
        return
    released = load(tf_tensor_data(tensors[1]), 0)
    release_rows(index, released)
    for k in range(count):
        row = remove(index, keys[k])
        if row > 0:
            retire_row(index, row)
        rows[k] = row - 1
    if released >= 0:
        age_rows(index)


def remove_keys(frame: op.Frame) -> None:
    """The kernel body."""
    tensors = stack_words(int64(_TENSORS))
    shared = stack_record(SharedVariable)
    for k in range(_TENSORS):
        tensors[k] = 0
    for k in range(_TENSORS):
        if not op.failed(frame):
            take(frame, tensors, int64(_KEYS + k), int64(k))
    if not op.failed(frame):
        index = as_record(KeyIndex, share_index(frame, int64(_INDEX), shared))
        if index != 0:
            _remove(frame, index, tensors)
        unshare(shared)
    release(tensors, int64(_TENSORS))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return remove_keys
