"""How kernels read and write tensors of a float dtype: half types in float32, others as they are.

A kernel computes in the *compute dtype* of T or Tw, which is float32 for half types; compiled code
knows their elements as uint16 only. `access` gives the functions between a kernel and its tensors:
half types are widened into scratch when they are read, and each result is rounded once, when it
is written. For float32 and float64 the same functions hand out the tensors themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.combine import row_at
from fusion.cpu_ops.half import converters
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, jit
from fusion.runtime.tensorflow.dtypes import DTYPES


class Access(NamedTuple):
    """The types of a float dtype's elements, and jitted functions for inputs and outputs.

    Tensors have rank 1 or 2 and the type `stored`; what the functions return has the type `compute`
    and is valid unless `failed(frame)`. Each takes scratch, of which a call can have little: for a
    list of shards use the functions of rows once, not those of tensors per shard.

    Attributes:
      stored: NumPy type of an element in memory, uint16 for half types.
      compute: NumPy type that kernels compute in.
      read: (frame, tensor) -> an array with its values, not to be written to.
      read_rows: (frame, addresses [n], D) -> addresses of rows [D] with their values, likewise.
      working: (frame, output) -> an array to work on in its stead, not initialised.
      working_rows: (frame, addresses [n], D) -> addresses of rows [D], likewise.
      write: (worked on, output): writes the result.
      write_rows: (addresses worked on, addresses, D): likewise.
    """

    stored: type
    compute: type
    read: Any
    read_rows: Any
    working: Any
    working_rows: Any
    write: Any
    write_rows: Any


def access(name: str) -> Access:
    """How kernels read and write tensors of float dtype `name`."""
    return _converted(name) if DTYPES[name].is_widened else _direct(name)


def _direct(name: str) -> Access:
    @jit
    def same(frame: int, tensor: Array) -> Array:
        return tensor

    @jit
    def same_rows(frame: int, addresses: Array, dim: int) -> Array:
        return addresses

    @jit
    def write(worked: Array, output: Array) -> None:
        pass

    @jit
    def write_rows(worked: Array, addresses: Array, dim: int) -> None:
        pass

    dtype = DTYPES[name].stored_type
    return Access(dtype, dtype, same, same_rows, same, same_rows, write, write_rows)


def _converted(name: str) -> Access:
    widen, narrow = converters(name)
    stored, compute = DTYPES[name].stored_type, DTYPES[name].compute_type

    @jit
    def working(frame: op.Frame, tensor: Array) -> Array:
        if tensor.ndim == 1:
            return op.scratch(frame, tensor.shape[0], compute)
        return op.scratch_matrix(frame, tensor.shape[0], tensor.shape[1], compute)

    @jit
    def working_rows(frame: op.Frame, addresses: Array, dim: int) -> Array:
        rows = op.scratch_matrix(frame, addresses.shape[0], dim, compute)
        result = op.scratch(frame, addresses.shape[0], np.int64)
        for k in range(result.shape[0]):
            result[k] = rows.ctypes.data + k * dim * rows.itemsize
        return result

    @jit
    def read(frame: op.Frame, tensor: Array) -> Array:
        values = working(frame, tensor)
        widen(tensor, values)
        return values

    @jit
    def read_rows(frame: op.Frame, addresses: Array, dim: int) -> Array:
        rows = working_rows(frame, addresses, dim)
        for k in range(rows.shape[0]):
            widen(row_at(addresses[k], dim, stored), row_at(rows[k], dim, compute))
        return rows

    @jit
    def write_rows(worked: Array, addresses: Array, dim: int) -> None:
        for k in range(addresses.shape[0]):
            narrow(row_at(worked[k], dim, compute), row_at(addresses[k], dim, stored))

    return Access(stored, compute, read, read_rows, working, working_rows, narrow, write_rows)
