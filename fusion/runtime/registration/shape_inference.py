"""The one native shape function; each op calls it with its own table (see layout).

Imported only when it is compiled.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words, store
from fusion.runtime.tensorflow.c_api import c_function, tf_get_code
from fusion.runtime.tensorflow.layout import (
    FIRST_PEER,
    FIRST_SUM,
    FIRST_SYMBOL,
    MAX_RANK,
    UNKNOWN,
    InputEntry,
    OpTable,
    OutputEntry,
)

_i32, _i64 = types.int32, types.int64
_num_inputs = c_function("TF_ShapeInferenceContextNumInputs", _i64, _i64)
_get_input = c_function("TF_ShapeInferenceContextGetInput", types.void, _i64, _i32, _i64, _i64)
_set_output = c_function("TF_ShapeInferenceContextSetOutput", types.void, _i64, _i32, _i64, _i64)
_set_unknown = c_function("TF_ShapeInferenceContextSetUnknownShape", types.void, _i64, _i64)
_with_rank = c_function(
    "TF_ShapeInferenceContextWithRank", types.void, _i64, _i64, _i64, _i64, _i64
)
_dim = c_function("TF_ShapeInferenceContextDim", types.void, _i64, _i64, _i64, _i64)
_vector = c_function("TF_ShapeInferenceContextVectorFromSize", _i64, _i64, _i64)
_concatenate = c_function(
    "TF_ShapeInferenceContextConcatenateShapes", types.void, _i64, _i64, _i64, _i64, _i64
)
_new_shape = c_function("TF_NewShapeHandle", _i64)
_delete_shape = c_function("TF_DeleteShapeHandle", types.void, _i64)
_new_dim = c_function("TF_NewDimensionHandle", _i64)
_delete_dim = c_function("TF_DeleteDimensionHandle", types.void, _i64)
_dim_known = c_function("TF_DimensionHandleValueKnown", _i32, _i64)
_dim_value = c_function("TF_DimensionHandleValue", _i64, _i64)


@jit
def _list_length(table: int, ctx: int) -> int:
    lists = load(table, OpTable.list_count)
    return (_num_inputs(ctx) - load(table, OpTable.single_count)) // lists if lists != 0 else 0


@jit
def _read_input(entry: int, sizes: int, ctx: int, index: int, status: int) -> None:
    """Asserts the rank of one input and notes the sizes that it fixes."""
    if load(entry, InputEntry.rank) < 0:
        return
    shape = _new_shape()
    dim = _new_dim()
    rank = load(entry, InputEntry.rank)
    _get_input(ctx, np.int32(index), shape, status)
    if tf_get_code(status) == 0:
        _with_rank(ctx, shape, rank, shape, status)
    # A `when` input is a dummy unless a bool attr says otherwise, which cannot be seen here.
    if tf_get_code(status) == 0 and load(entry, InputEntry.condition) < 0:
        for axis in range(rank):
            code = load(entry, InputEntry.dims + axis)
            if FIRST_PEER < code <= FIRST_SYMBOL:
                symbol = FIRST_SYMBOL - code
                _dim(ctx, shape, axis, dim)
                if _dim_known(dim) != 0:
                    store(sizes, symbol, _dim_value(dim))
    _delete_dim(dim)
    _delete_shape(shape)


@jit
def _peer_size(table: int, ctx: int, peer: int, position: int, status: int) -> int:
    """A size of the tensor at place `position` of a list input, or UNKNOWN."""
    owner, axis = peer // MAX_RANK, peer % MAX_RANK
    index = position
    for arg in range(owner):
        is_list = load(table, OpTable.entries + arg * InputEntry.SIZE + InputEntry.is_list) != 0
        index += _list_length(table, ctx) if is_list else 1
    shape = _new_shape()
    dim = _new_dim()
    size = int64(UNKNOWN)
    _get_input(ctx, np.int32(index), shape, status)
    if tf_get_code(status) == 0:
        rank = load(table, OpTable.entries + owner * InputEntry.SIZE + InputEntry.rank)
        _with_rank(ctx, shape, rank, shape, status)
    if tf_get_code(status) == 0:
        _dim(ctx, shape, axis, dim)
        if _dim_known(dim) != 0:
            size = _dim_value(dim)
    _delete_dim(dim)
    _delete_shape(shape)
    return size


@jit
def _sum_of_sizes(table: int, ctx: int, peer: int, status: int) -> int:
    """The sum of a size over all tensors of a list input, or UNKNOWN."""
    total = int64(0)
    for position in range(_list_length(table, ctx)):
        size = _peer_size(table, ctx, peer, position, status)
        if size < 0:
            return int64(UNKNOWN)
        total += size
    return total


@jit
def _size(code: int, table: int, sizes: int, ctx: int, position: int, status: int) -> int:
    if code <= FIRST_SUM:
        return _sum_of_sizes(table, ctx, FIRST_SUM - code, status)
    if code <= FIRST_PEER:
        return _peer_size(table, ctx, FIRST_PEER - code, position, status)
    return load(sizes, FIRST_SYMBOL - code) if code <= FIRST_SYMBOL else code


@jit
def _write_output(
    entry: int, table: int, sizes: int, ctx: int, index: int, position: int, status: int
) -> None:
    """Sets one output of rank 1 or 2."""
    shape = _vector(ctx, _size(load(entry, OutputEntry.dims), table, sizes, ctx, position, status))
    if load(entry, OutputEntry.rank) == 2:
        columns = _vector(
            ctx, _size(load(entry, OutputEntry.dims + 1), table, sizes, ctx, position, status)
        )
        _concatenate(ctx, shape, columns, shape, status)
        _delete_shape(columns)
    if tf_get_code(status) == 0:
        _set_output(ctx, np.int32(index), shape, status)
    _delete_shape(shape)


def infer_shapes(table: int, ctx: int, status: int) -> None:
    """Reads the inputs' shapes and sets the outputs' as the op's table says."""
    if load(table, OpTable.is_mixed) != 0:
        # TensorFlow's C API does not tell how long each list is.
        _set_unknown(ctx, status)
        return
    n_inputs = load(table, OpTable.input_count)
    n_symbols = load(table, OpTable.symbol_count)
    sizes = stack_words(n_symbols + 1)
    for symbol in range(n_symbols):
        store(sizes, symbol, -1)
    length = _list_length(table, ctx)
    index = 0
    for arg in range(n_inputs):
        entry = table + 8 * (OpTable.entries + arg * InputEntry.SIZE)
        for _ in range(length if load(entry, InputEntry.is_list) != 0 else 1):
            _read_input(entry, sizes, ctx, index, status)
            if tf_get_code(status) != 0:
                return
            index += 1
    index = 0
    for arg in range(load(table, OpTable.output_count)):
        entry = table + 8 * (OpTable.entries + n_inputs * InputEntry.SIZE + arg * OutputEntry.SIZE)
        for position in range(length if load(entry, OutputEntry.is_list) != 0 else 1):
            _write_output(entry, table, sizes, ctx, index, position, status)
            if tf_get_code(status) != 0:
                return
            index += 1
