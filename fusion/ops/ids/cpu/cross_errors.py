"""What TensorFlow's ops that cross features say of tensors that do not fit.

The first tensor that is wrong is reported, in the order in which these ops look: indices, values,
shapes, dense matrices, and at last whether all have the same rows. A position is that among the
features of a cross that are SparseTensors in stock, or matrices.
"""

from __future__ import annotations

import numpy as np

from fusion.ops.ids.cpu_kernels.cross_layout import DENSE, MASKED, SPARSE, VECTOR, Cross
from fusion.ops.tables.cpu.inputs import element_count
from fusion.runtime.layout import Layout, Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_words, stack_record, stack_words
from fusion.runtime.native.text import (
    Message,
    append_literal,
    append_number,
    begin,
    literal,
)
from fusion.runtime.tensorflow.c_api import tf_dim, tf_num_dims, tf_tensor_data

#: The bytes of a shape in a message.
_SHAPE_BYTES = 256


class CrossTensors(Layout):
    """The input tensors of a cross."""

    values: Words  # of each feature
    indices: Words  # of each SPARSE feature
    shapes: Words


@jit
def _shape_text(tensor: int, memory: int) -> int:
    """Writes a shape as TensorFlow does; returns the memory, a C string."""
    message = stack_record(Message)
    begin(message, memory, _SHAPE_BYTES)
    append_literal(message, literal("["))
    for axis in range(tf_num_dims(tensor)):
        if axis > 0:
            append_literal(message, literal(","))
        append_number(message, tf_dim(tensor, np.int32(axis)))
    append_literal(message, literal("]"))
    return memory


@jit
def _check_indices(frame: op.Frame, tensor: int, position: int, memory: int) -> None:
    if tf_num_dims(tensor) != 2:
        text = "Input indices should be a matrix but received shape %s at position %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, _shape_text(tensor, memory), position)
    elif tf_dim(tensor, np.int32(1)) != 2:
        text, width = (
            "Expected D2 of index to be 2 got %lld at position %lld",
            tf_dim(tensor, np.int32(1)),
        )
        op.fail(frame, op.INVALID_ARGUMENT, text, width, position)


@jit
def _check_values(frame: op.Frame, tensor: int, count: int, position: int, memory: int) -> None:
    """Checks the values of a SPARSE feature with so many entries."""
    if tf_num_dims(tensor) != 1:
        text = "Input values should be a vector but received shape %s at position %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, _shape_text(tensor, memory), position)
    elif element_count(tensor) != count:
        text = "Expected size of values to be %lld got %lld at position %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, count, element_count(tensor), position)


@jit
def _check_shape(frame: op.Frame, tensor: int, position: int, memory: int) -> None:
    if tf_num_dims(tensor) != 1:
        text = "Input shapes should be a vector but received shape %s at position %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, _shape_text(tensor, memory), position)
    elif element_count(tensor) != 2:
        text = "shape should imply a 2D tensor, but got %s at position %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, _shape_text(tensor, memory), position)


@jit
def _check_matrix(frame: op.Frame, tensor: int, position: int, memory: int) -> None:
    if tf_num_dims(tensor) != 2:
        text = "Dense inputs should be a matrix but received shape %s at position %lld"
        op.fail(frame, op.INVALID_ARGUMENT, text, _shape_text(tensor, memory), position)


@jit
def _row_count(cross: Cross, tensors: CrossTensors, index: int, sparse: int) -> int:
    """How many rows a feature says that there are, one with so many SPARSE ones in front of it."""
    if cross.features[index].form == SPARSE:
        return as_words(tf_tensor_data(tensors.shapes[sparse]))[0]
    return tf_dim(tensors.values[index], np.int32(0))


@jit
def _check_rows(frame: op.Frame, cross: Cross, tensors: CrossTensors) -> int:
    """Checks that all features have the same rows; returns how many. All else is checked."""
    expected, sparse, position = int64(0), int64(0), int64(0)
    for index in range(cross.feature_count):
        form, is_first = cross.features[index].form, index == 0
        if index > 0 and form >= DENSE and cross.features[index - 1].form < DENSE:
            position = 0
        count = _row_count(cross, tensors, int64(index), sparse)
        expected = count if is_first else expected
        if count != expected and form >= DENSE:
            text = "Expected batch size %lld got %lld at dense tensor %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, expected, count, position)
        elif count != expected:
            text = "Expected batch size %lld got %lld at position %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, expected, count, position)
        position += 1
        sparse += int64(form == SPARSE)
    if expected < 0:
        text = "shapes must not be negative, but there are %lld rows"
        op.fail(frame, op.INVALID_ARGUMENT, text, expected)
    return expected


@jit
def _check_all(
    frame: op.Frame, cross: Cross, tensors: CrossTensors, kind: int, memory: int
) -> None:
    """Checks the ranks and sizes of all tensors of a kind: indices, values, shapes, matrices."""
    sparse, position = int64(0), int64(0)
    for index in range(cross.feature_count):
        form, values = cross.features[index].form, tensors.values[index]
        if index > 0 and form >= DENSE and cross.features[index - 1].form < DENSE:
            position = 0
        if form == SPARSE:
            indices = tensors.indices[sparse]
            if kind == 0:
                _check_indices(frame, indices, position, memory)
            elif kind == 1:
                _check_values(frame, values, tf_dim(indices, np.int32(0)), position, memory)
            elif kind == 2:
                _check_shape(frame, tensors.shapes[sparse], position, memory)
            sparse += 1
        elif (kind == 0 and form == MASKED) or (kind == 3 and form == DENSE):
            _check_matrix(frame, values, position, memory)
        elif kind == 3 and form == VECTOR and tf_num_dims(values) != 1:
            text = "a feature of form vector has shape %s at dense tensor %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, _shape_text(values, memory), position)
        position += 1
        if op.failed(frame):
            return


@jit
def check_cross(frame: op.Frame, cross: Cross, tensors: CrossTensors) -> int:
    """Checks the tensors of a cross, of which SPARSE and MASKED ones are the first.

    Returns:
        How many rows it has; -1 after a failure.
    """
    memory = stack_words(int64(_SHAPE_BYTES // 8))
    for kind in range(4):
        _check_all(frame, cross, tensors, int64(kind), memory)
        if op.failed(frame):
            return int64(-1)
    count = _check_rows(frame, cross, tensors)
    return int64(-1) if op.failed(frame) else count
