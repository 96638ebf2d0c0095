"""Calls of device kernels in the simulator, on NumPy arrays, and the same by the CPU's op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from benchmarks.gpu.call import Call, Column, prepare
from fusion import ops
from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.gpu_ops.kernels.bags.combine import check_rows_kernel, combine_kernel
from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.gpu_ops.language.simulated import allow
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.arguments import Argument
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.tensorflow.dtypes import DTYPES, INT64

FORMS = ("indices", "row_ids", "row_splits", "dense", "copy")
COMBINERS = ("sum", "mean", "sqrtn")


@dataclass
class Given:
    """A column's arrays, and the attrs of FusedEmbeddingLookup that are not their defaults."""

    form: str
    table: Any
    ids: Any = None
    rows: Any = None
    weights: Any = None
    boundaries: Sequence[float] = ()
    attrs: dict[str, Any] = field(default_factory=dict)

    def arrays(self) -> list[Any]:
        return [
            array for array in (self.table, self.ids, self.rows, self.weights) if array is not None
        ]

    def column(self) -> Column:
        """The column as kernels find it."""
        attrs = dict(self.attrs)
        found: dict[int, Any] = {
            ColumnAttrs.combiner: COMBINERS.index(attrs.pop("combiner", "mean"))
        }
        names = {
            "max_norm": ColumnAttrs.max_norm,
            "prune": ColumnAttrs.prune,
            "fill_empty_row": ColumnAttrs.fill_empty_row,
            "default_id": ColumnAttrs.default_id,
            "prune_sparse_weights": ColumnAttrs.prune_sparse_weights,
            "default_weight": ColumnAttrs.default_weight,
            "divide_no_nan": ColumnAttrs.divide_no_nan,
            "use_ignored_id": ColumnAttrs.use_ignored_id,
            "ignored_id": ColumnAttrs.ignored_id,
            "column_stride": ColumnAttrs.column_stride,
            "num_buckets": ColumnAttrs.num_buckets,
            "bucket_default": ColumnAttrs.bucket_default,
        }
        found |= {names[key]: value for key, value in attrs.items()}
        rows, ids = self.rows, self.ids
        return Column(
            FORMS.index(self.form),
            self.table.ctypes.data,
            self.table.shape[0],
            self.table.shape[1],
            ids=0 if ids is None else ids.ctypes.data,
            id_count=0 if ids is None else ids.size,
            id_columns=ids.shape[1] if self.form == "dense" else 1,
            ids_kind=INT64 if ids is None else DTYPES[ids.dtype.name].code,
            rows=0 if rows is None else rows.ctypes.data,
            row_step=2 if self.form == "indices" else 1,
            rows_kind=INT64 if rows is None else DTYPES[rows.dtype.name].code,
            weights=0 if self.weights is None else self.weights.ctypes.data,
            boundaries=self.boundaries,
            attrs=found,
        )

    def by_cpu(self, batch: int) -> Any:
        """What the CPU's op makes of it."""
        if self.form == "copy":
            return self.table
        nothing = np.zeros([1], self.table.dtype)
        result = ops.fused_embedding_lookup(
            table=self.table,
            ids=self.ids,
            entry_rows=np.zeros([0], np.int64) if self.rows is None else self.rows,
            dense_shape=np.array([batch, 1], np.int64),
            weights=nothing if self.weights is None else self.weights,
            form=self.form,
            use_sparse_weights=self.weights is not None,
            boundaries=list(self.boundaries),
            **self.attrs,
        )
        return result.numpy()


def combine(batch: int, columns: Sequence[Given]) -> tuple[Any, list[int], Call]:
    """The result of a call, written over poison, its `ErrorRecord`, and the call."""
    stored = columns[0].table.dtype.name
    width = sum(column.table.shape[1] for column in columns)
    space = np.zeros([batch * width * 8 + 64], np.uint8)
    skip = -space.ctypes.data % 16
    dtype = np.dtype(ml_dtypes.bfloat16 if stored == "bfloat16" else stored)
    out = space[skip : skip + batch * width * dtype.itemsize].view(dtype).reshape(batch, width)
    out[:] = 77
    memory: list[Any] = []

    def address(size: int) -> int:
        memory.append(np.zeros(size // 8, np.int64))
        return int(memory[0].ctypes.data)

    described = [column.column() for column in columns]
    call = prepare(stored, batch, described, out.ctypes.data, address)
    (held,) = memory
    held[:] = call.words
    base = held.ctypes.data
    with allow(held, out, *(array for column in columns for array in column.arrays())):
        checked, tiles = call.tiles(CombineCall.check_tiles), call.tiles(CombineCall.tiles)
        if checked:
            cuda.jit(check_rows_kernel())[checked, call_of.THREADS](base)
        if tiles:
            cuda.jit(combine_kernel(stored, call.is_plain))[tiles, call_of.THREADS](base)
    record = held[call.errors : call.errors + ErrorRecord.SIZE]
    return out, [int(word) for word in record], call


def launch(name: str, blocks: int, threads: int, arguments: Sequence[Argument]) -> None:
    """Runs a kernel of `KERNELS`, in blocks that are small, and more of them, if it may be."""
    kernel = KERNELS[name]
    least = threads if kernel.together is None else max(kernel.together, 16)
    if kernel.is_of_any_size:
        size = blocks, min(threads, 8)
    else:
        size = blocks * threads // least, least
    cuda.jit(kernel.make())[size](*kernel.grouped(arguments))


class Simulated:
    """A `steps.device.Device` in the simulator; it has the memory of what it is given."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def put(self, array: Any) -> int:
        """The address of an array that kernels may use."""
        self.arrays.append(array)
        return int(array.ctypes.data)

    def get(self, address: int, count: int, dtype: Any) -> Any:
        """The elements at an address."""
        found = next(one for one in self.arrays if one.ctypes.data == address)
        return found.reshape(-1).view(np.uint8).view(dtype)[:count]

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """See `launch`."""
        with allow(*self.arrays):
            launch(kernel, blocks, threads, arguments)

    def reserve(self, size: int) -> int:
        return self.filled(size, 0x5A)  # poison

    def filled(self, size: int, byte: int) -> int:
        return self.put(np.full(max(size, 8), byte, np.uint8))

    def fill(self, address: int, size: int, byte: int) -> None:
        for one in self.arrays:
            at = address - one.ctypes.data
            if 0 <= at < one.nbytes:
                one.reshape(-1).view(np.uint8)[at : at + size] = byte
                return
        assert size == 0

    def words(self, address: int, count: int) -> Any:
        for one in self.arrays:
            at = address - one.ctypes.data
            if 0 <= at < one.nbytes:
                return one.reshape(-1).view(np.uint8)[at : at + 8 * count].view(np.int64).copy()
        raise KeyError(address)
