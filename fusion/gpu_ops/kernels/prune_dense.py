"""Listing the ids of a dense matrix as entries: the CPU's rules, see `fusion.cpu_ops.prune_dense`.

What is kept is marked, prefix sums of the marks say where it goes, and fillers follow, as in
`prune`.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import prune_dense
from fusion.cpu_ops.prune_dense import DenseRules
from fusion.gpu_ops.kernels.elements import integer_at
from fusion.gpu_ops.language.device import cuda, load, load_as, on_device, store, store_as
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import INT32, INT64

dense_id = on_device(prune_dense.dense_id)
keeps_dense = on_device(prune_dense.keeps_dense)


def mark_dense(
    ids: int,
    kind: int,
    count: int,
    width: int,
    out_kind: int,
    use_ignored: int,
    ignored: int,
    stride: int,
    buckets: int,
    bucket_default: int,
    least: int,
    numbers: int,
    mask: int,
    empty: int,
) -> None:
    """Kernel, a thread for each id of a matrix: what it stands for, and whether it is an entry.

    Args:
        ids, kind, count, width: ids of a kind, `width` in a row.
        out_kind: what they are cast to.
        use_ignored, ignored, stride, buckets, bucket_default, least: see `DenseRules`.
        numbers: out, int64 [count].
        mask: out, int32 [count], 1 for entries.
        empty: int32 by row, all 1; 0 for rows that have an entry.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    integer, column = integer_at(ids, k, kind), k % width
    rules = DenseRules(use_ignored != 0, ignored, stride, buckets, bucket_default, least)
    if out_kind == INT32:
        number = dense_id(integer, column, rules, np.int32)
        keeps = keeps_dense(integer, column, rules, np.int32)
    else:
        number = dense_id(integer, column, rules, np.int64)
        keeps = keeps_dense(integer, column, rules, np.int64)
    store(numbers, k, number)
    store_as(mask, k, np.int32(keeps), np.int32)
    if keeps:
        store_as(empty, k // width, np.int32(0), np.int32)


def put_dense(
    count: int,
    width: int,
    mask: int,
    offsets: int,
    numbers: int,
    out_kind: int,
    out_ids: int,
    out_indices: int,
) -> None:
    """Kernel, a thread for each id of a matrix: writes those that are entries.

    Args:
        mask, numbers: of `mark_dense`.
        offsets: int64 [count], prefix sums of `mask`.
        out_ids: out, of a kind.
        out_indices: out, int64, row and column of each entry.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count or load_as(mask, k, np.int32) == 0:
        return
    index, number = load(offsets, k), load(numbers, k)
    if out_kind == INT64:
        store(out_ids, index, number)
    else:
        store_as(out_ids, index, np.int32(number), np.int32)
    store(out_indices, 2 * index, k // width)
    store(out_indices, 2 * index + 1, k % width)


def put_row_flags(empty: int, batch: int, width: int, flags: int, shape: int) -> None:
    """Kernel, a thread for each row, at least one: whether it is empty, and the matrix's shape.

    Args:
        empty: int32 [batch].
        flags: out, bool [batch].
        shape: out, int64 [2], batch and width; 0: nowhere.
    """
    row = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if row == 0 and shape != 0:
        store(shape, int64(0), batch)
        store(shape, int64(1), width)
    if row < batch:
        store_as(flags, row, np.uint8(load_as(empty, row, np.int32)), np.uint8)
