"""A kernel's state and its calls, and an op's signature as a table that native code reads.

The table drives both the shape function and the checks before a kernel runs, so that one
declaration serves both.
"""

from __future__ import annotations

import struct
from collections import Counter

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields, record
from fusion.runtime.records import Memory, Word
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import Arg, OpSpec

MAX_RANK = 2
#: The maximum number of lengths of an op's lists, if shapes are inferred.
MAX_LENGTHS = 2

#: The maximum number of temporary tensors, in addition to inputs and outputs, on a CPU and a GPU.
MAX_TEMPS = 32
MAX_GPU_TEMPS = 192


class State(Layout):
    """The state of a node's kernel. Attrs follow, or what the op's builder makes of them."""

    kernel: Address
    op_table: OpTable
    launcher: Address  # see `fusion.runtime.cuda.launcher`, 0 on a CPU
    error_slots: Address  # of the node's kernels on a GPU, 0 until the first of them runs
    names_offset: Int64  # of the columns' names in the state, see `names`; 0 for none
    input_count: Int64  # of the node's tensors, see `registration.calling`
    output_count: Int64
    dtypes_offset: Int64  # of the inputs' numbers of `TF_DataType`; 0 unless kernels are cached


class Frame(Layout):
    """A call of a kernel.

    Lists follow: the starts of the inputs and of the outputs among the tensors of each; the size of
    each symbol and the input that bound it; the tensors.
    """

    context: Address  # TF_OpKernelContext*
    status: Address  # TF_Status*
    has_failed: Flag
    state: State  # of the kernel
    tensor_count: Int64  # tensors that the frame owns
    tensor_capacity: Int64
    started: Int64  # nanoseconds, of `system.now`
    row_count: Int64  # for `Counters`
    helper_count: Int64
    starts: Words = fields(0)


class Buffer(Layout):
    """A TF_Buffer of TensorFlow's C API."""

    data: Address
    length: Int64
    deallocator: Address


UNKNOWN = -1
FIRST_SYMBOL = -2
FIRST_PEER = -1000
FIRST_SUM = -2000

#: Ranks of outputs, see `OpTable`.
EXTENDED, SAME = -2, -3


class InputEntry(Layout):
    """An input of an op."""

    length: Int64  # of a list, 1 for the first of the op's lengths; 0: it is none
    rank: Int64
    condition: Int64  # the slot of the attr of its `when`, -1 without
    name: Address  # a C string
    dims: Words = fields(MAX_RANK)


class OpTable(Layout):
    """The signature of an op: an `InputEntry` for each input and an `OutputEntry` for each output.

    The rank is -1 for any shape. That of an output is SAME for the shape of the first input
    with any shape, at the same position, or unknown without one, and EXTENDED for that and one
    dimension more. A
    dimension is a size >= 0, UNKNOWN, FIRST_SYMBOL - k for symbol k, FIRST_PEER - k for
    dimension k % MAX_RANK of the tensor at the same position of list input k // MAX_RANK, or
    FIRST_SUM - k for the sum of that over the positions that an output has: all if there is one
    output, its own if there are as many; else that is not known.
    """

    input_count: Int64  # a list counts once
    output_count: Int64
    symbol_count: Int64  # of sizes
    single_count: Int64  # of inputs that are no lists
    single_output_count: Int64
    list_counts: Words = fields(MAX_LENGTHS)  # of inputs that are lists, by their length
    output_list_counts: Words = fields(MAX_LENGTHS)
    is_mixed: Flag  # whether the lengths of lists cannot be known: then no shapes are inferred
    resized: Address  # of the name of the attr `OpSpec.resized`, a C string; 0 for none
    resized_default: Int64  # its default, a number of `TF_DataType`
    rows_input: Int64  # the number of the input `OpSpec.rows`, -1 for none
    counters: Counters
    entries: InputEntry = record(InputEntry, 0)


class Counters(Layout):
    """Totals of the calls of an op's kernels, on all devices."""

    padding: Fields = fields(8)  # nothing else is in their cache lines, which all threads write
    calls: Int64
    rows: Int64  # ids that were looked up, padding included, or rows that were combined or updated
    helpers: Int64  # sum over calls of the maximum number of threads that helped at once
    nanoseconds: Int64  # from the first instruction of a kernel to its last
    end_padding: Fields = fields(8)


class OutputEntry(Layout):
    """An output of an op."""

    length: Int64  # as of an input
    rank: Int64
    dims: Words = fields(MAX_RANK)


def words(spec: OpSpec, memory: Memory) -> list[Word]:
    """The table of `spec`."""
    lengths = [
        None,
        *dict.fromkeys(arg.length for arg in (*spec.inputs, *spec.outputs) if arg.length),
    ]
    inputs, outputs = (
        Counter(lengths.index(arg.length) for arg in args) for args in (spec.inputs, spec.outputs)
    )
    table: list[Word] = [len(spec.inputs), len(spec.outputs), len(spec.symbols)]
    table += [inputs[0], outputs[0]]
    for counts in (inputs, outputs):
        table += [counts[length] for length in range(1, MAX_LENGTHS + 1)]
    is_solvable = len(lengths) <= 2 or inputs[1] * outputs[2] != inputs[2] * outputs[1]
    table.append(int(not is_solvable or len(lengths) > MAX_LENGTHS + 1))
    table += [0, 0]
    if spec.resized is not None:
        default = DTYPES[str(spec.types[spec.resized].default)].enum
        table[OpTable.resized :] = [memory.text(spec.resized), default]
    table.append(-1 if spec.rows is None else getattr(spec.input_indices, spec.rows))
    table.append(memory.words([0] * Counters.SIZE))
    for arg in spec.inputs:
        when = getattr(spec.slots, arg.when) if arg.when else -1
        table += [lengths.index(arg.length), _rank(arg), when, memory.text(arg.name)]
        table += _dimensions(spec, arg)
    for arg in spec.outputs:
        rank = EXTENDED if arg.extends_input else SAME if arg.has_any_shape else len(arg.dims)
        table += [lengths.index(arg.length), rank, *_dimensions(spec, arg)]
    return table


def _rank(arg: Arg) -> int:
    return -1 if arg.has_any_shape else len(arg.dims)


def _dimensions(spec: OpSpec, arg: Arg) -> list[int]:
    def encode(dim: str) -> int:
        if dim.isdigit():
            return int(dim)
        if dim.startswith("sum("):
            index, axis = spec.per_position[dim.removeprefix("sum(").removesuffix(")")]
            return FIRST_SUM - (index * MAX_RANK + axis)
        if dim in spec.per_position:
            index, axis = spec.per_position[dim]
            return FIRST_PEER - (index * MAX_RANK + axis)
        return FIRST_SYMBOL - spec.symbols.index(dim) if dim in spec.symbols else UNKNOWN

    dims = [] if arg.has_any_shape else [encode(dim) for dim in arg.dims]
    return dims + [UNKNOWN] * (MAX_RANK - len(dims))


def double_word(value: float) -> int:
    """The bits of a double as a 64-bit word."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
