"""An op's signature as a table of 64-bit words that native code reads.

The table drives both the shape function and the checks before a kernel runs, so that one
declaration serves both. Layout, in words:

    0 number of inputs (a list counts once)   1 number of outputs   2 number of size symbols
    3 number of list inputs                   4 number of scalar inputs
    5... per input:  is_list, rank, attr slot of `when` or -1, address of the name,
                     MAX_RANK dimensions
         per output: is_list, rank, MAX_RANK dimensions

The rank is -1 for any shape. A dimension is a size >= 0, UNKNOWN, FIRST_SYMBOL - k for symbol k,
FIRST_PEER - k for dimension k % MAX_RANK of the tensor at the same place of list input
k // MAX_RANK, or FIRST_SUM - k for the sum of that over all places.
"""

from __future__ import annotations

import ctypes
import struct

from fusion.runtime.tensorflow.spec import Arg, OpSpec

MAX_RANK = 2

#: A kernel's state, in words: the address of the kernel, of the op's table, of what launches
#: kernels on a GPU and of where those tell of trouble (`runtime.launcher`; both 0 on a CPU); where
#: in the state the names of columns are, in words, 0 if they have none (`runtime.names`); then
#: attributes, or what the op's `custom` made of them; then the names.
KERNEL, TABLE, LAUNCHER, TROUBLE, NAMES, STATE_WORDS = range(6)
UNKNOWN = -1
FIRST_SYMBOL = -2
FIRST_PEER = -1000
FIRST_SUM = -2000

HEADER = 5
INPUT_WORDS = 4 + MAX_RANK
OUTPUT_WORDS = 2 + MAX_RANK


def words(spec: OpSpec) -> tuple[list[int], list[ctypes.Array[ctypes.c_char]]]:
    """The table of `spec`, and the C strings that it points to."""
    names = [ctypes.create_string_buffer(arg.name.encode()) for arg in spec.inputs]
    lists = sum(arg.length is not None for arg in spec.inputs)
    table = [len(spec.inputs), len(spec.outputs), len(spec.symbols), lists]
    table.append(len(spec.inputs) - lists)
    for arg, name in zip(spec.inputs, names, strict=True):
        when = getattr(spec.slots, arg.when) if arg.when else -1
        table += [int(arg.length is not None), _rank(arg), when, ctypes.addressof(name)]
        table += _dimensions(spec, arg)
    for arg in spec.outputs:
        table += [int(arg.length is not None), len(arg.dims), *_dimensions(spec, arg)]
    return table, names


def _rank(arg: Arg) -> int:
    return -1 if arg.has_any_shape else len(arg.dims)


def _dimensions(spec: OpSpec, arg: Arg) -> list[int]:
    def encode(dim: str) -> int:
        if dim.isdigit():
            return int(dim)
        if dim.startswith("sum("):
            place, axis = spec.per_place[dim.removeprefix("sum(").removesuffix(")")]
            return FIRST_SUM - (place * MAX_RANK + axis)
        if dim in spec.per_place:
            place, axis = spec.per_place[dim]
            return FIRST_PEER - (place * MAX_RANK + axis)
        return FIRST_SYMBOL - spec.symbols.index(dim) if dim in spec.symbols else UNKNOWN

    dims = [] if arg.has_any_shape else [encode(dim) for dim in arg.dims]
    return dims + [UNKNOWN] * (MAX_RANK - len(dims))


def double_word(value: float) -> int:
    """The bits of a double as a 64-bit word."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
