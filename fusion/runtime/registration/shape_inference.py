"""The one native shape function; each op calls it with its own table (see layout).

Imported only when it is compiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as
from fusion.runtime.native.pointers import as_record, stack_words
from fusion.runtime.tensorflow.c_api import c_function, tf_get_code
from fusion.runtime.tensorflow.layout import (
    EXTENDED,
    FIRST_PEER,
    FIRST_SUM,
    FIRST_SYMBOL,
    MAX_LENGTHS,
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
_get_type = c_function("TF_ShapeInferenceContext_GetAttrType", types.void, _i64, _i64, _i64, _i64)
_new_shape = c_function("TF_NewShapeHandle", _i64)
_delete_shape = c_function("TF_DeleteShapeHandle", types.void, _i64)
_new_dim = c_function("TF_NewDimensionHandle", _i64)
_delete_dim = c_function("TF_DeleteDimensionHandle", types.void, _i64)
_dim_known = c_function("TF_DimensionHandleValueKnown", _i32, _i64)
_dim_value = c_function("TF_DimensionHandleValue", _i64, _i64)


@jit
def _num_outputs(ctx: int, status: int) -> int:
    """The number of outputs. TensorFlow's C API only says whether output `index` exists."""
    shape, count = _new_shape(), int64(0)
    _set_output(ctx, np.int32(count), shape, status)
    while tf_get_code(status) == 0:
        count += 1
        _set_output(ctx, np.int32(count), shape, status)
    _delete_shape(shape)
    _set_unknown(ctx, status)  # and the error is gone
    return count


@jit
def _find_lengths(table: OpTable, ctx: int, lengths: Words, status: int) -> None:
    """Finds how many tensors an argument has, by its `length`; 1 if it is no list.

    There are as many equations as lengths: for the inputs, and for the outputs.
    """
    first = table.list_counts[0]
    second = table.list_counts[1]
    first_out = table.output_list_counts[0]
    second_out = table.output_list_counts[1]
    inputs = _num_inputs(ctx) - table.single_count
    lengths[0] = 1
    if second == 0 and second_out == 0:
        lengths[1] = inputs // first if first != 0 else 0
        return
    outputs = _num_outputs(ctx, status) - table.single_output_count
    divisor = first * second_out - second * first_out
    lengths[1] = (inputs * second_out - second * outputs) // divisor
    lengths[2] = (first * outputs - inputs * first_out) // divisor


@jit
def _length(entry: InputEntry | OutputEntry, lengths: Words) -> int:
    """How many tensors an argument has."""
    return lengths[entry.length]


@jit
def _read_input(entry: InputEntry, sizes: Words, ctx: int, index: int, status: int) -> None:
    """Asserts the rank of one input and notes the sizes that it fixes."""
    if entry.rank < 0:
        return
    shape = _new_shape()
    dim = _new_dim()
    rank = entry.rank
    _get_input(ctx, np.int32(index), shape, status)
    if tf_get_code(status) == 0:
        _with_rank(ctx, shape, rank, shape, status)
    # A `when` input is a dummy unless a bool attr says otherwise, which cannot be seen here.
    if tf_get_code(status) == 0 and entry.condition < 0:
        for axis in range(rank):
            code = entry.dims[axis]
            if FIRST_PEER < code <= FIRST_SYMBOL:
                symbol = FIRST_SYMBOL - code
                _dim(ctx, shape, axis, dim)
                if _dim_known(dim) != 0:
                    sizes[symbol] = _dim_value(dim)
    _delete_dim(dim)
    _delete_shape(shape)


class _Shapes(NamedTuple):
    """What is known of a node's shapes when its outputs are set.

    Attributes:
      table: of its op.
      ctx, status: TensorFlow's.
      lengths: how many tensors arguments have, see `_find_lengths`.
      sizes: of symbols.
    """

    table: OpTable
    ctx: int
    status: int
    lengths: Words
    sizes: Words


@jit
def _peer_size(known: _Shapes, peer: int, position: int) -> int:
    """A size of the tensor at place `position` of a list input, or UNKNOWN."""
    table, ctx, status = known.table, known.ctx, known.status
    owner, axis = peer // MAX_RANK, peer % MAX_RANK
    index = position
    for arg in range(owner):
        index += _length(table.entries[arg], known.lengths)
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
def _sum_of_sizes(known: _Shapes, peer: int, output: int) -> int:
    """The sum of a size over the tensors of a list input that an output is of, or UNKNOWN."""
    table, lengths = known.table, known.lengths
    outputs = table.single_output_count
    for k in range(MAX_LENGTHS):
        outputs += table.output_list_counts[k] * lengths[k + 1]
    owner = table.entries[peer // MAX_RANK]
    count, total = _length(owner, lengths), int64(0)
    if outputs == count:
        return _peer_size(known, peer, output)
    if outputs != 1:
        return int64(UNKNOWN)
    for index in range(count):
        size = _peer_size(known, peer, int64(index))
        if size < 0:
            return int64(UNKNOWN)
        total += size
    return total


@jit
def _size(known: _Shapes, code: int, index: int, position: int) -> int:
    """A size of output `index`, which is at a position of its list."""
    if code <= FIRST_SUM:
        return _sum_of_sizes(known, FIRST_SUM - code, index)
    if code <= FIRST_PEER:
        return _peer_size(known, FIRST_PEER - code, position)
    return known.sizes[FIRST_SYMBOL - code] if code <= FIRST_SYMBOL else code


@jit
def _is_resized(table: OpTable, ctx: int, status: int) -> bool:
    """Whether an attr says that the sizes of outputs do not follow from the inputs."""
    name, dtype = table.resized, stack_words(1)
    if name == 0:
        return False
    _get_type(ctx, name, dtype, status)
    is_known = tf_get_code(status) == 0
    return is_known and load_as(dtype, 0, np.int32) != table.resized_default


@jit
def _write_output(
    known: _Shapes, entry: OutputEntry, index: int, position: int, is_resized: bool
) -> None:
    """Sets one output, of rank 1 or 2 or of the rank of an input and one more."""
    if entry.rank < 0:
        _follow_input(known, index, position, entry.rank == EXTENDED)
        return
    ctx, status = known.ctx, known.status
    rows, width = entry.dims[0], entry.dims[1]
    if is_resized:
        rows = width = int64(UNKNOWN)
    shape = _vector(ctx, _size(known, rows, index, position))
    if entry.rank == 2:
        columns = _vector(ctx, _size(known, width, index, position))
        _concatenate(ctx, shape, columns, shape, status)
        _delete_shape(columns)
    if tf_get_code(status) == 0:
        _set_output(ctx, np.int32(index), shape, status)
    _delete_shape(shape)


@jit
def _follow_input(known: _Shapes, index: int, position: int, is_extended: bool) -> None:
    """Sets an output to the shape of an input, or to that and one dimension that is not known.

    Without an input of any shape it stays unknown.
    """
    table, ctx, status = known.table, known.ctx, known.status
    number, arg = position, int64(0)
    while arg < table.input_count and table.entries[arg].rank >= 0:
        number += _length(table.entries[arg], known.lengths)
        arg += 1
    if arg == table.input_count:
        return
    shape, last = _new_shape(), _vector(ctx, int64(UNKNOWN))
    _get_input(ctx, np.int32(number), shape, status)
    if tf_get_code(status) == 0 and is_extended:
        _concatenate(ctx, shape, last, shape, status)
    if tf_get_code(status) == 0:
        _set_output(ctx, np.int32(index), shape, status)
    _delete_shape(last)
    _delete_shape(shape)


def infer_shapes(table: OpTable, ctx: int, status: int) -> None:
    """Reads the inputs' shapes and sets the outputs' as the op's table says."""
    if table.is_mixed != 0:
        _set_unknown(ctx, status)
        return
    n_inputs = table.input_count
    n_symbols = table.symbol_count
    sizes = stack_words(n_symbols + 1)
    for symbol in range(n_symbols):
        sizes[symbol] = -1
    lengths = stack_words(MAX_LENGTHS + 1)
    _find_lengths(table, ctx, lengths, status)
    index = 0
    for arg in range(n_inputs):
        entry = table.entries[arg]
        for _ in range(_length(entry, lengths)):
            _read_input(entry, sizes, ctx, index, status)
            if tf_get_code(status) != 0:
                return
            index += 1
    known = _Shapes(table, ctx, status, lengths, sizes)
    _set_unknown(ctx, status)
    index, is_resized = 0, _is_resized(table, ctx, status)
    for arg in range(table.output_count):
        output = as_record(OutputEntry, table.entries[n_inputs])[arg]
        for position in range(_length(output, lengths)):
            _write_output(known, output, int64(index), int64(position), is_resized)
            if tf_get_code(status) != 0:
                return
            index += 1
