"""The other inputs of a call, and its results: checked, and their addresses."""

from __future__ import annotations

import numpy as np

from fusion.ops.updates.cpu.layout import UpdateJob, UpdateState
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load
from fusion.runtime.tensorflow.c_api import (
    tf_delete_tensor,
    tf_dim,
    tf_get_input,
    tf_num_dims,
    tf_tensor_data,
)


@jit
def tensor_count(state: UpdateState) -> int:
    """The number of inputs that are tensors: ids, values and scalars."""
    return 1 + state.value_count + state.scalar_count


@jit
def release_inputs(tensors: Words, count: int) -> None:
    """Releases tensors; 0 is none."""
    for k in range(count):
        if tensors[k] != 0:
            tf_delete_tensor(tensors[k])


@jit
def _take(frame: op.Frame, state: UpdateState, tensors: Words, index: int) -> int:
    """The tensor number `index` behind the handles; 0 if it cannot be had."""
    number = np.int32(state.variable_count + index)
    tf_get_input(frame.context, number, tensors + 8 * index, frame.status)
    op.check(frame)
    if op.failed(frame):
        tensors[index] = 0
    return tensors[index]


@jit
def take_inputs(frame: op.Frame, job: UpdateJob, tensors: Words) -> int:
    """Takes all tensors and makes the results; returns the address of ids.

    Args:
      tensors: out, to be released, [tensor_count], zeros.
    """
    state = job.state
    ids = _take(frame, state, tensors, int64(0))
    if op.failed(frame):
        return int64(0)
    count = _elements(ids)
    job.id_count = count
    op.count_rows(frame, count)
    values = state.value_count
    for index in range(values):
        if not op.failed(frame):
            _take_value(frame, job, tensors, int64(index))
    for index in range(state.scalar_count):
        if not op.failed(frame):
            _take_scalar(frame, job, tensors, int64(index))
    dim, item = state.dim, state.item_bytes
    for index in range(state.result_count):
        result = op.new_output(frame, int64(index), int64(2), count, dim, item)
        job.results[index] = result
    return tf_tensor_data(ids)


@jit
def _elements(tensor: int) -> int:
    elements = int64(1)
    for axis in range(tf_num_dims(tensor)):
        elements *= tf_dim(tensor, np.int32(axis))
    return elements


@jit
def _take_value(frame: op.Frame, job: UpdateJob, tensors: Words, index: int) -> None:
    state = job.state
    tensor = _take(frame, state, tensors, 1 + index)
    if op.failed(frame):
        return
    rank, count = int64(tf_num_dims(tensor)), job.id_count
    if rank != 2:
        op.fail(frame, op.INVALID_ARGUMENT, "values[%lld] has rank %lld, not 2", index, rank)
        return
    rows, width = tf_dim(tensor, np.int32(0)), tf_dim(tensor, np.int32(1))
    offset, dim = load(state, state.offsets + index), state.dim
    if offset < 0 and rows != count:
        text = "values[%lld] has %lld rows, but there are %lld ids"
        op.fail(frame, op.INVALID_ARGUMENT, text, index, rows, count)
    elif offset < 0 and width != dim:
        text = "values[%lld] has %lld columns, not %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, index, width, dim)
    elif rows < count:
        text = "values[%lld] has %lld rows, fewer than the %lld ids"
        op.fail(frame, op.INVALID_ARGUMENT, text, index, rows, count)
    elif offset > width - dim:
        text = "values[%lld] has %lld columns, fewer than %lld from %lld on"
        op.fail(frame, op.INVALID_ARGUMENT, text, index, width, dim, offset)
    item = state.item_bytes
    source = job.values[index]
    source.first = tf_tensor_data(tensor) + max(offset, int64(0)) * item
    source.step = width * item


@jit
def _take_scalar(frame: op.Frame, job: UpdateJob, tensors: Words, index: int) -> None:
    state = job.state
    tensor = _take(frame, state, tensors, 1 + state.value_count + index)
    if op.failed(frame):
        return
    elements = _elements(tensor)
    if elements != 1:
        text = "scalars[%lld] has %lld elements, not 1"
        op.fail(frame, op.INVALID_ARGUMENT, text, index, elements)
        return
    job.scalars[index] = tf_tensor_data(tensor)
