"""Gradients of rows that are shortened to a norm, as `bags.cpu_kernels.combine_grad` has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.gpu_ops.kernels.elements import weight_at
from fusion.gpu_ops.kernels.tiles import shard_index
from fusion.gpu_ops.language.arithmetic import norm_of
from fusion.gpu_ops.language.device import (
    added,
    as_float,
    cuda,
    divided,
    jit,
    load,
    load_as,
    multiplied,
    store_as,
    vector_storer,
)
from fusion.gpu_ops.layout.records import GatheredRows, Gradient, Scales
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import FLOAT16, FLOAT32, FLOAT64

_norm16, _norm_b16 = norm_of("float16", 1), norm_of("bfloat16", 1)
_norm32, _norm64 = norm_of("float32", 1), norm_of("float64", 1)
_store16, _store_b16 = vector_storer("float16", 1), vector_storer("bfloat16", 1)
_store32, _store64 = vector_storer("float32", 1), vector_storer("float64", 1)


@jit
def item_of(dtype: int) -> int:
    """The bytes of an element of a float dtype."""
    if dtype == FLOAT64:
        return int64(8)
    return int64(4) if dtype == FLOAT32 else int64(2)


@jit
def store_float(address: int, index: int, value: float, dtype: int) -> None:
    """Writes a double as an element of a dtype; half types are rounded by way of float32."""
    at = address + index * item_of(dtype)
    if dtype == FLOAT64:
        _store64(at, (value,))
    elif dtype == FLOAT32:
        _store32(at, (np.float32(value),))
    elif dtype == FLOAT16:
        _store16(at, (np.float32(value),))
    else:
        _store_b16(at, (np.float32(value),))


@jit
def _norm(address: int, dim: int, dtype: int) -> float:
    if dtype == FLOAT64:
        return np.float64(_norm64(address, dim))
    if dtype == FLOAT32:
        return np.float64(_norm32(address, dim))
    if dtype == FLOAT16:
        return np.float64(_norm16(address, dim))
    return np.float64(_norm_b16(address, dim))


@jit
def worked_at(working: int, index: int, dtype: int) -> float:
    """An element of the compute dtype of `dtype`, as a double."""
    if dtype == FLOAT64:
        return load_as(working, index, np.float64)
    return np.float64(load_as(working, index, np.float32))


@jit
def limit_of(gradient: Gradient) -> float:
    """The limit of the norms of rows, in their compute dtype."""
    limit = as_float(gradient.limit)
    return limit if gradient.dtype == FLOAT64 else np.float64(np.float32(limit))


@jit
def row_address(rows: GatheredRows, number: int) -> int:
    """The address of a gathered row."""
    shard, index = shard_index(rows, number)
    return load(rows.shards, 2 * shard) + index * rows.row_bytes


@jit
def _times(a: float, b: float) -> Any:
    return multiplied((a,), b)[0]


@jit
def _over(a: float, b: float) -> Any:
    return divided((a,), b)[0]


@jit
def _plus(a: float, b: float) -> Any:
    return added((a,), (b,))[0]


def measure_rows(gradient: Gradient, rows: GatheredRows, scaled: Scales) -> None:
    """Kernel, a thread for each gathered row: its norm, and its gradient's part along it."""
    number = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if number >= rows.number:
        return
    dtype, dim, row = gradient.dtype, gradient.dim, row_address(rows, number)
    norm, along = _norm(row, dim, dtype), 0.0
    store_as(scaled.norms, number, norm, np.float64)
    if norm < limit_of(gradient):
        return
    for d in range(dim):  # divided first, so that nothing overflows
        share = _over(weight_at(row, int64(d), dtype), norm)
        along = _plus(along, _times(share, worked_at(scaled.working, number * dim + d, dtype)))
    store_as(scaled.alongs, number, along, np.float64)


def unclip_rows(gradient: Gradient, rows: GatheredRows, scaled: Scales, outs: int) -> None:
    """Kernel, a thread for each element of gathered rows: the gradient of the rows themselves.

    Args:
        scaled: as `measure_rows` leaves it.
        outs: int64 [shard_count], addresses of the gradients of each shard.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    dtype, dim = gradient.dtype, gradient.dim
    if thread >= rows.number * dim:
        return
    number, d = thread // dim, thread % dim
    grad, norm = worked_at(scaled.working, thread, dtype), load_as(scaled.norms, number, np.float64)
    bound = limit_of(gradient)
    if not norm < bound:
        row, along = row_address(rows, number), load_as(scaled.alongs, number, np.float64)
        part = _times(_over(weight_at(row, d, dtype), norm), along)
        grad = _times(_over(bound, norm), _plus(grad, -part))
    shard, index = shard_index(rows, number)
    store_float(load(outs, shard), index * dim + d, grad, dtype)
