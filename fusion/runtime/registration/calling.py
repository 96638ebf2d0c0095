"""What all kernels are called by: a call of another node's kernel fails.

A Session keeps the kernels of stateful ops by the names of their nodes, for all graphs that it
runs. Where one name stands for several nodes, a kernel may get tensors that it was not made for.
"""

from __future__ import annotations

import numpy as np

from fusion.runtime.native.errors import INTERNAL, fail
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load
from fusion.runtime.native.pointers import stack_record
from fusion.runtime.tensorflow.c_api import (
    tf_delete_status,
    tf_failure,
    tf_input_datatype,
    tf_new_status,
    tf_num_inputs,
    tf_num_outputs,
)
from fusion.runtime.tensorflow.layout import Frame, State


def call_kernel(state: State, ctx: int) -> None:
    """The compute function of all kernels."""
    inputs, outputs = int64(tf_num_inputs(ctx)), int64(tf_num_outputs(ctx))
    if inputs != state.input_count or outputs != state.output_count:
        _fail_by_count(state, ctx, inputs, outputs)
        return
    dtypes = state.dtypes_offset
    if dtypes != 0:
        for k in range(inputs):
            dtype = int64(tf_input_datatype(ctx, np.int32(k)))
            if dtype != load(state, dtypes + k):
                _fail_by_dtype(state, ctx, int64(k), dtype)
                return
    call_at(state.kernel, state, ctx)


@jit
def _fail_by_count(state: State, ctx: int, inputs: int, outputs: int) -> None:
    frame = stack_record(Frame)
    _open(frame)
    fail(
        frame,
        INTERNAL,
        "TensorFlow calls the kernel of another node of this name: it takes %lld inputs and makes "
        "%lld outputs, but the node has %lld and %lld",
        state.input_count,
        state.output_count,
        inputs,
        outputs,
    )
    _close(frame, ctx)


@jit
def _fail_by_dtype(state: State, ctx: int, index: int, dtype: int) -> None:
    frame = stack_record(Frame)
    _open(frame)
    fail(
        frame,
        INTERNAL,
        "TensorFlow calls the kernel of another node of this name: its input %lld has DataType "
        "%lld, but the node's has %lld",
        index,
        load(state, state.dtypes_offset + index),
        dtype,
    )
    _close(frame, ctx)


@jit
def _open(frame: Frame) -> None:
    frame.has_failed = 0
    frame.status = tf_new_status()


@jit
def _close(frame: Frame, ctx: int) -> None:
    tf_failure(ctx, frame.status)
    tf_delete_status(frame.status)
