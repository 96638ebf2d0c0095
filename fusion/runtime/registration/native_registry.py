"""Ops and kernels into TensorFlow's registries, in native code; see `registry`."""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as, store_as
from fusion.runtime.registration.registry import MESSAGE_BYTES, KernelEntry, OpRecord, Registry
from fusion.runtime.tensorflow.c_api import (
    tf_add_attr,
    tf_add_input,
    tf_add_output,
    tf_constrain_type,
    tf_delete_status,
    tf_get_code,
    tf_keep_on_host,
    tf_label_kernel,
    tf_message,
    tf_new_kernel_builder,
    tf_new_op_definition_builder,
    tf_new_status,
    tf_register_kernel,
    tf_register_op,
    tf_set_shape_function,
    tf_set_stateful,
)

_i32 = types.int32


def register(registry: Registry) -> None:
    """Registers all ops with TensorFlow, then all kernels; on failure the registry says why.

    TensorFlow ends the process when an op of one of these names is there.
    """
    status = tf_new_status()
    registry.code = 0
    for k in range(registry.op_count):
        if registry.code == 0:
            op = registry.ops[k]
            _define(op, status)
            _note(registry, status)
    for k in range(registry.kernel_count):
        if registry.code == 0:
            kernel = registry.kernels[k]
            _register_kernel(registry, kernel, status)
            _note(registry, status)
    tf_delete_status(status)


register_all = jit(register)


@jit
def _define(op: OpRecord, status: int) -> None:
    builder = tf_new_op_definition_builder(op.name)
    for k in range(op.attr_count):
        tf_add_attr(builder, op.attrs[k])
    for k in range(op.input_count):
        tf_add_input(builder, op.inputs[k])
    for k in range(op.output_count):
        tf_add_output(builder, op.outputs[k])
    if op.is_stateful != 0:  # TensorFlow does not look at the argument
        tf_set_stateful(builder, types.uint8(1))
    tf_set_shape_function(builder, op.infer_shapes)
    tf_register_op(builder, status)


@jit
def _register_kernel(registry: Registry, kernel: KernelEntry, status: int) -> None:
    op, device = kernel.op, kernel.device
    create = kernel.create
    compute, free = registry.compute, registry.free
    builder = tf_new_kernel_builder(op, device, create, compute, free)
    label = kernel.label
    if load_as(label, int64(0), np.uint8) != 0:
        tf_label_kernel(builder, label)
    for k in range(kernel.constraint_count):
        constraint = kernel.constraints[k]
        dtype = _i32(constraint.dtype)
        tf_constrain_type(builder, constraint.attr, dtype, status)
        if tf_get_code(status) != 0:
            return
    for k in range(kernel.host_arg_count):
        tf_keep_on_host(builder, kernel.host_args[k])
    tf_register_kernel(kernel.name, builder, status)


@jit
def _note(registry: Registry, status: int) -> None:
    """Keeps the code and the message of a status."""
    registry.code = int64(tf_get_code(status))
    text, out = tf_message(status), registry.message
    for k in range(int64(MESSAGE_BYTES) - 1):
        byte = load_as(text, k, np.uint8)
        store_as(out, k, byte, np.uint8)
        if byte == 0:
            return
