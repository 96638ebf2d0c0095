"""AddEmbeddingKeys on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.cpu_ops.index_layout import Addition, KeyIndex
from fusion.cpu_ops.key_index import put_key
from fusion.ops.cpu.tables.inputs import element_count, release, take
from fusion.ops.cpu.tables.layout import SharedVariable
from fusion.ops.cpu.tables.sharing import share_index, unshare
from fusion.runtime.native.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, fail
from fusion.runtime.native.frame import failed, new_output
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, stack_words, store
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs.
_INDEX, _KEYS, _COUNTS, _STEPS = range(4)
_TENSORS = 3


@jit
def _add(frame: int, index: int, tensors: int) -> None:
    """What is done while the index is shared."""
    count = element_count(load(tensors, 0))
    for number in range(1, _TENSORS):
        others = element_count(load(tensors, number))
        if others != count:
            text = "counts and steps must be as many as the %lld keys, but %lld are there"
            fail(frame, INVALID_ARGUMENT, text, count, others)
            return
    rows = new_output(frame, int64(0), int64(1), count, int64(1), int64(8))
    if failed(frame):
        return
    addition = stack_words(Addition.SIZE)
    for k in range(Addition.SIZE):
        store(addition, k, 0)
    keys, counts = tf_tensor_data(load(tensors, 0)), tf_tensor_data(load(tensors, 1))
    steps = tf_tensor_data(load(tensors, 2))
    for k in range(count):
        times = int64(load_as(counts, k, np.int32))
        store(rows, k, put_key(index, load(keys, k), times, load(steps, k), addition))
    if load(addition, Addition.refused_count) > 0:
        text = "there is no room for %lld keys more than the capacity of %lld rows"
        refused = load(addition, Addition.refused_count)
        fail(frame, RESOURCE_EXHAUSTED, text, refused, load(index, KeyIndex.capacity))


def add(frame: int) -> None:
    """The kernel body."""
    tensors, shared = stack_words(int64(_TENSORS)), stack_words(SharedVariable.SIZE)
    for k in range(_TENSORS):
        store(tensors, k, 0)
    for k in range(_TENSORS):
        if not failed(frame):
            take(frame, tensors, int64(_KEYS + k), int64(k))
    if not failed(frame):
        index = share_index(frame, int64(_INDEX), shared)
        if index != 0:
            _add(frame, index, tensors)
        unshare(shared)
    release(tensors, int64(_TENSORS))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body."""
    return add
