"""Dropping invalid entries of a batch of sparse ids, and filling the rows left empty.

As `bags.cpu_kernels.prune`: entries are marked, prefix sums say where those that are kept go, and
fillers follow them, rows ascending.
"""

from __future__ import annotations

import numpy as np

from fusion.gpu_ops.kernels.elements import (
    copy_element,
    integer_at,
    store_bits,
    store_integer,
    weight_at,
)
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.language.device import as_record, as_words, cuda, load, load_as, store, store_as
from fusion.gpu_ops.layout.call import BAD_ROW
from fusion.gpu_ops.layout.records import Entries, Ids, Marks, PrunedEntries
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.jit import int64


def mark_entries(
    entries: Entries, min_id: int, by_weight: int, mask: int, empty: int, errors_address: int
) -> None:
    """Kernel, a thread for each entry: marks those that are kept, and their rows.

    Args:
        min_id: the smallest id that is kept.
        by_weight: whether entries with weights <= 0 or NaN are dropped.
        mask: out, as of `Marks`.
        empty: the same, all 1 before.
        errors: an `ErrorRecord`, for a row outside the batch.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= entries.number:
        return
    keeps = integer_at(entries.ids, k, entries.ids_dtype) >= min_id
    if by_weight != 0:
        keeps = keeps and weight_at(entries.weights, k, entries.weights_dtype) > 0
    store_as(mask, k, np.int32(keeps), np.int32)
    if not keeps:
        return
    row = load(entries.indices, 2 * k)
    if row < 0 or row >= entries.batch:
        report_error(errors, BAD_ROW, int64(0), k, row)
    else:
        store_as(empty, row, np.int32(0), np.int32)


def put_entries(entries: Entries, marked: Marks, out: PrunedEntries) -> None:
    """Kernel, a thread for each entry: copies those that are kept."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= entries.number or load_as(marked.mask, k, np.int32) == 0:
        return
    index, number = load(marked.offsets, k), integer_at(entries.ids, k, entries.ids_dtype)
    store_integer(as_words(out.ids), index, number, entries.ids_dtype)
    store(out.indices, 2 * index, load(entries.indices, 2 * k))
    store(out.indices, 2 * index + 1, load(entries.indices, 2 * k + 1))
    if entries.weights != 0:
        weights, item = as_words(entries.weights), entries.weight_bytes
        copy_element(weights, k, as_words(out.weights), index, item)


def fill_rows(
    entries: Entries, marked: Marks, first: int, filler: int, weight: int, out: PrunedEntries
) -> None:
    """Kernel, a thread for each row: an entry for each that keeps none.

    Args:
        first: the index of the first filler, after the entries that are kept.
        filler, weight: their id, and the bits of their weight, of which 0 bytes may be written.
    """
    row = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if row >= entries.batch or load_as(marked.empty, row, np.int32) == 0:
        return
    index = first + load(marked.fillers, row)
    store_integer(as_words(out.ids), index, filler, entries.ids_dtype)
    store(out.indices, 2 * index, row)
    store(out.indices, 2 * index + 1, 0)
    store_bits(as_words(out.weights), index, weight, entries.weight_bytes)


def put_in_buckets(ids: Ids, buckets: int, default: int) -> None:
    """Kernel, a thread for each id: those outside [0, buckets) become `default`."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= ids.number:
        return
    number = integer_at(ids.address, k, ids.dtype)
    if number < 0 or number >= buckets:
        store_integer(as_words(ids.address), k, default, ids.dtype)


def fill_elements(target: int, count: int, bits: int, item: int) -> None:
    """Kernel, a thread for each element of 2, 4 or 8 bytes: sets them all to the same."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k < count:
        store_bits(as_words(target), k, bits, item)
