"""What kernel bodies are written in: typed views of a call's tensors, and errors.

This module is imported only when something is compiled. Nothing here allocates through Numba's
runtime or raises: a body gets a *frame*, the address of 64-bit words on the stack that describe
one call, takes its inputs from it as arrays, allocates outputs and scratch in it, and reports
errors with `fail`. The frame owns every tensor, so that all of them are released on every path.

Frame, in words: context, status, failed, kernel state, number of tensors held and the most that
can be, starts of the inputs, starts of the outputs, size of each symbol and the input that bound
it, tensors.
Kernel state, in words: address of the kernel, address of the op's table, attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion.runtime.c_api import (
    datatype,
    item_bytes,
    tf_allocate_output,
    tf_allocate_temp,
    tf_delete_status,
    tf_delete_tensor,
    tf_dim,
    tf_expected_output_datatype,
    tf_failure,
    tf_get_code,
    tf_get_input,
    tf_new_status,
    tf_num_dims,
    tf_num_inputs,
    tf_num_outputs,
    tf_set_output,
    tf_tensor_data,
)
from fusion.runtime.jit import Array, int64, jit
from fusion.runtime.layout import (
    FIRST_PEER,
    FIRST_SYMBOL,
    HEADER,
    INPUT_WORDS,
    MAX_RANK,
    OUTPUT_WORDS,
)
from fusion.runtime.memory import as_float, load, pointer, stack_words, store, word_pointer

INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
INTERNAL = 13

_CTX, _STATUS, _FAILED, _STATE, _HELD, _CAPACITY, _STARTS = range(7)
_MAX_TEMPS = 32
#: Words of the frame of an op whose body takes its inputs itself, and holds none of them there.
_SHORT_FRAME = 96

#: No tensor is larger: this is the address space of a process. TensorFlow would wait ten seconds
#: for so much memory, and aborts when the number of elements does not fit 63 bits.
_MAX_BYTES = 2**47

_i64 = types.int64
_WORD = ir.IntType(64)


@intrinsic(prefer_literal=True)
def fail(typingctx: Any, frame: Any, code: Any, text: Any, *values: Any) -> Any:
    """Reports an error: the call ends with status `code` and the first message given.

    `text` is a literal with %lld for an int64 value and %s for the address of a C string.
    """
    if not isinstance(text, types.StringLiteral):
        return None
    packed_type = types.StarArgTuple([_i64] * len(values))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        frame, code, _, packed = args
        numbers = [builder.extract_value(packed, k) for k in range(len(packed_type))]
        flag = word_pointer(builder, frame, _FAILED)
        first = builder.icmp_unsigned("==", builder.load(flag), ir.Constant(_WORD, 0))
        with builder.if_then(first, likely=False):
            builder.store(ir.Constant(_WORD, 1), flag)
            message = _format(builder, text.literal_value, numbers)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [_WORD, ir.IntType(32), message.type]),
                "TF_SetStatus",
            )
            status = builder.load(word_pointer(builder, frame, _STATUS))
            builder.call(function, [status, builder.trunc(code, ir.IntType(32)), message])
        return context.get_dummy_value()

    return types.void(_i64, _i64, text, packed_type), codegen


def _format(builder: Any, text: str, numbers: list[Any]) -> Any:
    """A C string on the stack, formatted by snprintf."""
    size = 512
    byte = ir.IntType(8)
    array = cgutils.alloca_once(builder, ir.ArrayType(byte, size))
    buffer = builder.bitcast(array, byte.as_pointer())
    cgutils.snprintf(builder, buffer, ir.Constant(_WORD, size), text, *numbers)
    return buffer


@jit
def failed(frame: int) -> bool:
    """Whether `fail` was called, or a C API call ended in error."""
    return load(frame, _FAILED) != 0


@jit
def _check(frame: int) -> None:
    if tf_get_code(load(frame, _STATUS)) != 0:
        store(frame, _FAILED, 1)


@jit
def attr(frame: int, index: int) -> int:
    """The int, bool or string attr (its place among the allowed values) in slot `index`."""
    return load(load(frame, _STATE), 2 + index)


@jit
def attr_float(frame: int, index: int) -> float:
    """The float attr in slot `index`, as a double."""
    return as_float(load(load(frame, _STATE), 2 + index))


@jit
def context(frame: int) -> int:
    """The op's context."""
    return load(frame, _CTX)


@jit
def kernel_state(frame: int) -> int:
    """The address of the kernel's state."""
    return load(frame, _STATE)


@jit
def status_of(frame: int) -> int:
    """The status that C API calls of the call's own thread may set."""
    return load(frame, _STATUS)


# --- inputs ---------------------------------------------------------------------------------


@jit
def _table(frame: int) -> int:
    return load(load(frame, _STATE), 1)


@jit
def _tensors(frame: int) -> int:
    """Index of the first tensor slot."""
    table = _table(frame)
    return _STARTS + load(table, 0) + load(table, 1) + 2 * load(table, 2)


@jit
def input_start(frame: int, arg: int) -> int:
    """Index of the first tensor of input `arg` among all tensors."""
    return load(frame, _STARTS + arg)


@jit
def list_length(frame: int) -> int:
    """The length of the op's list inputs, 0 if it has none."""
    table = _table(frame)
    lists = load(table, 3)
    if lists == 0:
        return 0
    return (tf_num_inputs(load(frame, _CTX)) - load(table, 4)) // lists


@jit
def _tensor(frame: int, index: int) -> int:
    return load(frame, _tensors(frame) + index)


@jit
def size(frame: int, arg: int, position: int, axis: int) -> int:
    """Elements of tensor `position` of input `arg` along `axis`."""
    return tf_dim(_tensor(frame, input_start(frame, arg) + position), np.int32(axis))


@jit
def data(frame: int, arg: int, position: int) -> int:
    """Address of the elements of tensor `position` of input `arg`."""
    return tf_tensor_data(_tensor(frame, input_start(frame, arg) + position))


@jit
def vector(frame: int, arg: int, dtype: type) -> Array:
    """Input `arg` as an array of rank 1."""
    return carray(pointer(data(frame, arg, 0), dtype), (size(frame, arg, 0, 0),))


@jit
def shard_vector(frame: int, arg: int, position: int, dtype: type) -> Array:
    """Tensor `position` of list input `arg` as an array of rank 1."""
    return carray(pointer(data(frame, arg, position), dtype), (size(frame, arg, position, 0),))


@jit
def matrix(frame: int, arg: int, position: int, dtype: type) -> Array:
    """Tensor `position` of input `arg` as an array of rank 2."""
    shape = (size(frame, arg, position, 0), size(frame, arg, position, 1))
    return carray(pointer(data(frame, arg, position), dtype), shape)


@jit
def _bind(frame: int, entry: int, arg: int, axis: int, symbol: int, actual: int) -> None:
    """Checks one size against what an earlier input says of the same symbol."""
    table = _table(frame)
    slot = _STARTS + load(table, 0) + load(table, 1) + 2 * symbol
    if load(frame, slot) < 0:
        store(frame, slot, actual)
        store(frame, slot + 1, arg)
    elif load(frame, slot) != actual:
        other = load(table, HEADER + load(frame, slot + 1) * INPUT_WORDS + 3)
        fail(
            frame,
            INVALID_ARGUMENT,
            "%s has size %lld in dimension %lld, but %s says that it is %lld",
            load(entry, 3),
            actual,
            axis,
            other,
            load(frame, slot),
        )


@jit
def _check_peer(frame: int, entry: int, position: int, axis: int, peer: int, actual: int) -> None:
    """Checks one size against the tensor at the same place of an earlier list."""
    arg = peer // MAX_RANK
    expected = size(frame, arg, position, peer % MAX_RANK)
    if actual != expected:
        other = load(_table(frame), HEADER + arg * INPUT_WORDS + 3)
        fail(
            frame,
            INVALID_ARGUMENT,
            "%s[%lld] has size %lld in dimension %lld, but %s[%lld] says that it is %lld",
            load(entry, 3),
            position,
            actual,
            axis,
            other,
            position,
            expected,
        )


@jit
def _check_shape(frame: int, arg: int, position: int, tensor: int) -> None:
    entry = _table(frame) + 8 * (HEADER + arg * INPUT_WORDS)
    rank = load(entry, 1)
    if rank < 0:
        return
    if tf_num_dims(tensor) != rank:
        actual = int64(tf_num_dims(tensor))
        text = "%s must have rank %lld, but has rank %lld"
        fail(frame, INVALID_ARGUMENT, text, load(entry, 3), rank, actual)
        return
    if load(entry, 2) >= 0 and attr(frame, load(entry, 2)) == 0:
        return
    for axis in range(rank):
        dim = load(entry, 4 + axis)
        actual = tf_dim(tensor, np.int32(axis))
        if dim <= FIRST_PEER:
            _check_peer(frame, entry, position, axis, FIRST_PEER - dim, actual)
        elif dim <= FIRST_SYMBOL:
            _bind(frame, entry, arg, axis, FIRST_SYMBOL - dim, actual)
        elif dim >= 0 and dim != actual:
            text = "%s must have size %lld in dimension %lld, but has %lld"
            fail(frame, INVALID_ARGUMENT, text, load(entry, 3), dim, axis, actual)


@jit
def _take_inputs(frame: int) -> None:
    """Holds every input, checked against the declared shapes."""
    table = _table(frame)
    n_args = load(table, 0)
    first = _tensors(frame)
    index = 0
    for arg in range(n_args):
        count = 1
        if load(table, HEADER + arg * INPUT_WORDS) != 0:
            count = list_length(frame)
        store(frame, _STARTS + arg, index)
        for position in range(count):
            slot = frame + 8 * (first + index)
            tf_get_input(load(frame, _CTX), np.int32(index), slot, load(frame, _STATUS))
            _check(frame)
            if not failed(frame):
                _check_shape(frame, arg, position, load(slot, 0))
            if failed(frame):
                return
            index += 1
    output = 0
    for arg in range(load(table, 1)):
        store(frame, _STARTS + n_args + arg, output)
        entry = HEADER + n_args * INPUT_WORDS + arg * OUTPUT_WORDS
        output += list_length(frame) if load(table, entry) != 0 else 1


# --- outputs and scratch --------------------------------------------------------------------
#
# C API calls set the status, also when they succeed: after an error none may follow, or the error
# would be lost.


@jit
def _hold(frame: int, tensor: int) -> int:
    """Makes the frame the owner of `tensor` and gives the address of its elements."""
    _check(frame)
    held = load(frame, _HELD)
    if held == load(frame, _CAPACITY):
        tf_delete_tensor(tensor)
        fail(frame, INTERNAL, "the kernel allocates more than its frame holds")
    elif tensor != 0:
        store(frame, _tensors(frame) + held, tensor)
        store(frame, _HELD, held + 1)
    if failed(frame) or tensor == 0:
        return int64(0)
    return tf_tensor_data(tensor)


@jit
def _output_start(frame: int, arg: int) -> int:
    """Index of the first tensor of output `arg` among all outputs."""
    return load(frame, _STARTS + load(_table(frame), 0) + arg)


@jit
def _output(frame: int, index: int, rank: int, rows: int, columns: int, item: int) -> int:
    if failed(frame):
        return int64(0)
    dims = stack_words(2)
    store(dims, 0, rows)
    store(dims, 1, columns)
    count = rows * columns if rank == 2 else rows
    if columns > 0 and rows > _MAX_BYTES // (columns * item):
        fail(frame, RESOURCE_EXHAUSTED, "no memory for [%lld, %lld] elements", rows, columns)
        return int64(0)
    # The element type of compiled code may be only what it sees of the output's own (uint16 of
    # half types).
    number = np.int32(index)
    tensor = tf_allocate_output(
        load(frame, _CTX),
        number,
        tf_expected_output_datatype(load(frame, _CTX), number),
        dims,
        np.int32(rank),
        count * item,
        load(frame, _STATUS),
    )
    return _hold(frame, tensor)


@jit
def output_bytes(frame: int, rows: int, columns: int, item: int) -> int:
    """The address of a new tensor [rows, columns], of elements of `item` bytes, for output 0."""
    return _output(frame, int64(0), int64(2), rows, columns, item)


@jit
def output_vector(frame: int, arg: int, position: int, count: int, dtype: type) -> Array:
    """A new tensor [count] for output `arg`; empty if it cannot be had (see `failed`)."""
    place = _output_start(frame, arg) + position
    address = _output(frame, place, 1, count, 1, item_bytes(dtype))
    return carray(pointer(address, dtype), (count if address != 0 else 0,))


@jit
def output_matrix(
    frame: int, arg: int, position: int, rows: int, columns: int, dtype: type
) -> Array:
    """A new tensor [rows, columns] for output `arg`; no rows if it cannot be had."""
    # A matrix without columns has rows, though no address.
    place = _output_start(frame, arg) + position
    address = _output(frame, place, 2, rows, columns, item_bytes(dtype))
    return carray(pointer(address, dtype), (int64(0) if failed(frame) else rows, columns))


@jit
def forward_input(frame: int, output: int, arg: int) -> None:
    """Makes input `arg` itself output number `output`; nothing is copied."""
    if failed(frame):
        return
    tensor = _tensor(frame, input_start(frame, arg))
    status = load(frame, _STATUS)
    tf_set_output(load(frame, _CTX), np.int32(_output_start(frame, output)), tensor, status)
    _check(frame)


@jit
def _scratch(frame: int, count: int, dtype: type) -> int:
    if failed(frame):
        return int64(0)
    if count > _MAX_BYTES // item_bytes(dtype):
        fail(frame, RESOURCE_EXHAUSTED, "no memory for [%lld] elements", count)
        return int64(0)
    dims = stack_words(1)
    store(dims, 0, max(count, 1))
    tensor = tf_allocate_temp(
        load(frame, _CTX), np.int32(datatype(dtype)), dims, np.int32(1), 0, load(frame, _STATUS)
    )
    return _hold(frame, tensor)


@jit
def scratch(frame: int, count: int, dtype: type) -> Array:
    """An array [count] for the length of the call, not initialised; empty on failure."""
    address = _scratch(frame, count, dtype)
    return carray(pointer(address, dtype), (count if address != 0 else 0,))


@jit
def scratch_matrix(frame: int, rows: int, columns: int, dtype: type) -> Array:
    """An array [rows, columns] for the length of the call; no rows on failure."""
    address = _scratch(frame, rows * columns, dtype)
    return carray(pointer(address, dtype), (int64(0) if failed(frame) else rows, columns))


# --- the call -------------------------------------------------------------------------------


@jit
def _frame_words(state: int, ctx: int) -> int:
    table = load(state, 1)
    fixed = _STARTS + load(table, 0) + load(table, 1) + 2 * load(table, 2)
    return fixed + tf_num_inputs(ctx) + tf_num_outputs(ctx) + _MAX_TEMPS


@jit
def _open(frame: int, words: int, state: int, ctx: int) -> None:
    for k in range(words):
        store(frame, k, 0)
    store(frame, _CTX, ctx)
    store(frame, _STATE, state)
    store(frame, _STATUS, tf_new_status())
    store(frame, _CAPACITY, words - _tensors(frame))
    table = load(state, 1)
    for symbol in range(load(table, 2)):
        store(frame, _STARTS + load(table, 0) + load(table, 1) + 2 * symbol, -1)


@jit
def _close(frame: int) -> None:
    if failed(frame):
        tf_failure(load(frame, _CTX), load(frame, _STATUS))
    first = _tensors(frame)
    for k in range(load(frame, _HELD)):
        tensor = load(frame, first + k)
        if tensor != 0:
            tf_delete_tensor(tensor)
    tf_delete_status(load(frame, _STATUS))


def make_entry(body: Any) -> Any:
    """The compute function `(state, ctx)` around a kernel body.

    All inputs are in the frame, checked against the declared shapes, before the body runs.
    """
    body = jit(body)

    def entry(state: int, ctx: int) -> None:
        words = _frame_words(state, ctx)
        frame = stack_words(words)
        _open(frame, words, state, ctx)
        store(frame, _HELD, int64(tf_num_inputs(ctx)))
        _take_inputs(frame)
        if not failed(frame):
            body(frame)
        _close(frame)

    return entry


def make_shared_entry(body: Any, work: Any) -> Any:
    """The compute function `(state, ctx)` around a body that takes the inputs that it needs itself.

    Called with (job, 0) it does `work(job)`: that is how threads are told to help.
    """
    body = jit(body)

    def entry(state: int, ctx: int) -> None:
        if ctx == 0:
            work(state)
            return
        words = int64(_SHORT_FRAME)
        frame = stack_words(words)
        _open(frame, words, state, ctx)
        body(frame)
        _close(frame)

    return entry
