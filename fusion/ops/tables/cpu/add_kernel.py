"""AddEmbeddingKeys on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.ops.tables.cpu.layout import AccessState, SharedVariable
from fusion.ops.tables.cpu.sharing import check_rows, share, share_index, unshare
from fusion.ops.tables.cpu_kernels.entries import put_key
from fusion.ops.tables.cpu_kernels.layout import Addition, KeyIndex
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.atomic import atomic_add, atomic_load
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_record, stack_words
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Inputs, and the numbers of tensors among them.
_TABLE, _INDEX, _KEYS, _COUNTS, _STEPS, _VALUES = range(6)
_TENSORS = 4


@jit
def _check(frame: int, tensors: Words, dim: int) -> None:
    """Checks that there are as many counts and steps as keys, and rows for those with a step."""
    count = element_count(tensors[0])
    for number in range(1, _VALUES - _KEYS):
        others = element_count(tensors[number])
        if others != count:
            text = "counts and steps must be as many as the %lld keys, but %lld are there"
            op.fail(frame, op.INVALID_ARGUMENT, text, count, others)
            return
    steps, rows = as_words(tf_tensor_data(tensors[_STEPS - _KEYS])), int64(0)
    for k in range(count):
        rows += int64(steps[k] >= 0)
    elements = element_count(tensors[_VALUES - _KEYS])
    if elements != 0 and elements != rows * dim:
        text = "values has %lld elements, not %lld rows of %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, elements, rows, dim)


@jit
def _add(frame: op.Frame, table: int, index: KeyIndex, tensors: Words) -> None:
    """What is done while table and index, at their addresses, are shared."""
    state = as_record(AccessState, frame.state)
    dim, item = state.dim, state.item_bytes
    count = element_count(tensors[0])
    op.count_rows(frame, count)
    rows = as_words(op.new_output(frame, int64(0), int64(1), count, int64(1), int64(8)))
    if op.failed(frame):
        return
    addition = stack_record(Addition)
    clear(addition)
    addition.table = table
    addition.dim = dim
    addition.item_bytes = item
    keys = as_words(tf_tensor_data(tensors[0]))
    counts = tf_tensor_data(tensors[_COUNTS - _KEYS])
    steps = as_words(tf_tensor_data(tensors[_STEPS - _KEYS]))
    values = tensors[_VALUES - _KEYS]
    row = tf_tensor_data(values) if element_count(values) != 0 else int64(0)
    newest = int64(0)
    for k in range(count):
        newest = max(newest, steps[k])
        addition.first = row
        times = int64(load_as(counts, k, np.int32))
        rows[k] = put_key(index, keys[k], times, steps[k], addition)
        if row != 0 and steps[k] >= 0:
            row += dim * item
    clock = atomic_load(index, KeyIndex.clock)
    if newest > clock:  # lookups in training go on counting from there
        atomic_add(index, KeyIndex.clock, newest - clock)
    if addition.refused_count > 0:
        text = "there is no room for %lld keys more than the capacity of %lld rows"
        refused = addition.refused_count
        op.fail(frame, op.RESOURCE_EXHAUSTED, text, refused, index.capacity)


@jit
def _add_shared(frame: op.Frame, tensors: Words) -> None:
    """Shares table and index, and adds the keys."""
    state = as_record(AccessState, frame.state)
    table = stack_record(SharedVariable)
    shared = stack_record(SharedVariable)
    clear(table)
    clear(shared)
    if share(frame, state.table_access, int64(_TABLE), table):
        index = as_record(KeyIndex, share_index(frame, int64(_INDEX), shared))
        if index != 0:
            dim, item = state.dim, state.item_bytes
            check_rows(frame, table, index, dim * item, int64(-1))
            if not op.failed(frame):
                _add(frame, table.data, index, tensors)
        unshare(shared)
    unshare(table)


def add(frame: op.Frame) -> None:
    """The kernel body."""
    tensors = stack_words(int64(_TENSORS))
    for k in range(_TENSORS):
        tensors[k] = 0
    for k in range(_TENSORS):
        if not op.failed(frame):
            take(frame, tensors, int64(_KEYS + k), int64(k))
    if not op.failed(frame):
        _check(frame, tensors, as_record(AccessState, frame.state).dim)
    if not op.failed(frame):
        _add_shared(frame, tensors)
    release(tensors, int64(_TENSORS))


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return add
