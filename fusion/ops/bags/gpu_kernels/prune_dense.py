"""Lists the ids of a dense matrix as entries, by the CPU's rules: `bags.cpu_kernels.prune_dense`.

What is kept is marked, prefix sums of the marks say where it goes, and fillers follow, as in
`prune`.
"""

from __future__ import annotations

import numpy as np

from fusion.gpu_ops.kernels.elements import integer_at, store_integer
from fusion.gpu_ops.language.device import as_words, cuda, load, load_as, on_device, store, store_as
from fusion.gpu_ops.layout.records import DenseIds, Marks, PrunedEntries
from fusion.ops.bags.cpu_kernels import prune_dense
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import INT32

dense_id = on_device(prune_dense.dense_id)
keeps_dense = on_device(prune_dense.keeps_dense)


def mark_dense(dense: DenseIds, rules: DenseRules, numbers: int, mask: int, empty: int) -> None:
    """Kernel, a thread for each id of a matrix: its entry's id, and whether it is an entry.

    Args:
        numbers: out, int64 by id.
        mask: out, as of `Marks`.
        empty: the same, all 1 before.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= dense.batch * dense.width:
        return
    integer, column = integer_at(dense.ids, k, dense.dtype), k % dense.width
    if dense.out_dtype == INT32:
        number = dense_id(integer, column, rules, np.int32)
        keeps = keeps_dense(integer, column, rules, np.int32)
    else:
        number = dense_id(integer, column, rules, np.int64)
        keeps = keeps_dense(integer, column, rules, np.int64)
    store(numbers, k, number)
    store_as(mask, k, np.int32(keeps), np.int32)
    if keeps:
        store_as(empty, k // dense.width, np.int32(0), np.int32)


def put_dense(dense: DenseIds, marked: Marks, numbers: int, out: PrunedEntries) -> None:
    """Kernel, a thread for each id of a matrix: writes those that are entries, without weights.

    Args:
        numbers: of `mark_dense`.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= dense.batch * dense.width or load_as(marked.mask, k, np.int32) == 0:
        return
    index = load(marked.offsets, k)
    store_integer(as_words(out.ids), index, load(numbers, k), dense.out_dtype)
    store(out.indices, 2 * index, k // dense.width)
    store(out.indices, 2 * index + 1, k % dense.width)


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
