"""Ops and kernels into TensorFlow's registries, in native code; see `registry`."""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, store, store_as
from fusion.runtime.registration.registry import (
    MESSAGE_BYTES,
    KernelEntry,
    OpRecord,
    Registry,
    TypeConstraint,
)
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


def register(registry: int) -> None:
    """Tells TensorFlow of all ops, then of all kernels; where that fails the registry says why.

    TensorFlow ends the process when an op of one of these names is there.
    """
    status = tf_new_status()
    store(registry, Registry.code, 0)
    for k in range(load(registry, Registry.op_count)):
        if load(registry, Registry.code) == 0:
            op = load(registry, Registry.ops) + 8 * OpRecord.SIZE * k
            _define(op, status)
            _note(registry, status)
    for k in range(load(registry, Registry.kernel_count)):
        if load(registry, Registry.code) == 0:
            kernel = load(registry, Registry.kernels) + 8 * KernelEntry.SIZE * k
            _register_kernel(registry, kernel, status)
            _note(registry, status)
    tf_delete_status(status)


register_all = jit(register)


@jit
def _define(op: int, status: int) -> None:
    builder = tf_new_op_definition_builder(load(op, OpRecord.name))
    for k in range(load(op, OpRecord.attr_count)):
        tf_add_attr(builder, load(load(op, OpRecord.attrs), k))
    for k in range(load(op, OpRecord.input_count)):
        tf_add_input(builder, load(load(op, OpRecord.inputs), k))
    for k in range(load(op, OpRecord.output_count)):
        tf_add_output(builder, load(load(op, OpRecord.outputs), k))
    if load(op, OpRecord.is_stateful) != 0:  # TensorFlow does not look at the argument
        tf_set_stateful(builder, types.uint8(1))
    tf_set_shape_function(builder, load(op, OpRecord.infer_shapes))
    tf_register_op(builder, status)


@jit
def _register_kernel(registry: int, kernel: int, status: int) -> None:
    op, device = load(kernel, KernelEntry.op), load(kernel, KernelEntry.device)
    create = load(kernel, KernelEntry.create)
    compute, free = load(registry, Registry.compute), load(registry, Registry.free)
    builder = tf_new_kernel_builder(op, device, create, compute, free)
    label = load(kernel, KernelEntry.label)
    if load_as(label, int64(0), np.uint8) != 0:
        tf_label_kernel(builder, label)
    for k in range(load(kernel, KernelEntry.constraint_count)):
        constraint = load(kernel, KernelEntry.constraints) + 8 * TypeConstraint.SIZE * k
        dtype = _i32(load(constraint, TypeConstraint.dtype))
        tf_constrain_type(builder, load(constraint, TypeConstraint.attr), dtype, status)
        if tf_get_code(status) != 0:
            return
    for k in range(load(kernel, KernelEntry.host_arg_count)):
        tf_keep_on_host(builder, load(load(kernel, KernelEntry.host_args), k))
    tf_register_kernel(load(kernel, KernelEntry.name), builder, status)


@jit
def _note(registry: int, status: int) -> None:
    """Keeps the code and the message of a status."""
    store(registry, Registry.code, int64(tf_get_code(status)))
    text, out = tf_message(status), registry + 8 * Registry.message
    for k in range(int64(MESSAGE_BYTES) - 1):
        byte = load_as(text, k, np.uint8)
        store_as(out, k, byte, np.uint8)
        if byte == 0:
            return
