"""FindEmbeddingKeys on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.ops.tables.cpu.layout import SharedVariable
from fusion.ops.tables.cpu.sharing import share_index, unshare
from fusion.ops.tables.cpu_kernels.index import find_rows
from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs.
_INDEX, _KEYS = range(2)


@jit
def _find(frame: op.Frame, index: KeyIndex, keys: int) -> None:
    """What is done while the index is shared."""
    count = element_count(keys)
    op.count_rows(frame, count)
    rows = as_words(op.new_output(frame, int64(0), int64(1), count, int64(1), int64(8)))
    if not op.failed(frame):
        find_rows(index, as_words(tf_tensor_data(keys)), count, rows)


def find_keys(frame: op.Frame) -> None:
    """The kernel body."""
    tensors = stack_words(int64(1))
    shared = stack_record(SharedVariable)
    tensors[0] = 0
    keys = take(frame, tensors, int64(_KEYS), int64(0))
    if not op.failed(frame):
        index = as_record(KeyIndex, share_index(frame, int64(_INDEX), shared))
        if index != 0:
            _find(frame, index, keys)
        unshare(shared)
    release(tensors, int64(1))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return find_keys
