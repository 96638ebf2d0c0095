"""Dropping invalid entries of a batch of sparse ids, and filling the rows left empty.

As `fusion.cpu_ops.prune`: entries are marked, prefix sums say where those that are kept go, and
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
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.jit import int64


def mark_entries(
    ids: int,
    kind: int,
    count: int,
    indices: int,
    weights: int,
    weight_kind: int,
    least: int,
    batch: int,
    mask: int,
    empty: int,
    errors_address: int,
) -> None:
    """Kernel, a thread for each entry: marks those that are kept, and their rows.

    Args:
        ids, kind, count: ids of a kind.
        indices: int64 [count, 2], column 0 is the row of each entry.
        weights, weight_kind: entries with weights <= 0 or NaN are dropped; 0: there are none.
        least: the least id that is kept.
        mask: out, int32 [count].
        empty: int32 [batch], all 1; 0 for rows that keep an entry.
        errors: an `ErrorRecord`, for a row outside the batch.
    """
    errors = as_record(ErrorRecord, errors_address)
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    keeps = integer_at(ids, k, kind) >= least
    if weights != 0:
        keeps = keeps and weight_at(weights, k, weight_kind) > 0
    store_as(mask, k, np.int32(keeps), np.int32)
    if not keeps:
        return
    row = load(indices, 2 * k)
    if row < 0 or row >= batch:
        report_error(errors, BAD_ROW, int64(0), k, row)
    else:
        store_as(empty, row, np.int32(0), np.int32)


def put_entries(
    count: int,
    mask: int,
    offsets: int,
    ids: int,
    id_bytes: int,
    indices: int,
    weights: int,
    weight_bytes: int,
    out_ids: int,
    out_indices: int,
    out_weights: int,
) -> None:
    """Kernel, a thread for each entry: copies those that are kept.

    Args:
        offsets: int64 [count], prefix sums of `mask`.
        weights: 0 if there are none.
    """
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count or load_as(mask, k, np.int32) == 0:
        return
    index = load(offsets, k)
    copy_element(as_words(ids), k, as_words(out_ids), index, id_bytes)
    store(out_indices, 2 * index, load(indices, 2 * k))
    store(out_indices, 2 * index + 1, load(indices, 2 * k + 1))
    if weights != 0:
        copy_element(as_words(weights), k, as_words(out_weights), index, weight_bytes)


def fill_rows(
    batch: int,
    empty: int,
    offsets: int,
    first: int,
    filler: int,
    kind: int,
    weight_word: int,
    weight_bytes: int,
    out_ids: int,
    out_indices: int,
    out_weights: int,
) -> None:
    """Kernel, a thread for each row: an entry for each that keeps none.

    Args:
        empty, offsets: int32 [batch] and its prefix sums, int64.
        first: the index of the first filler, behind the entries that are kept.
        filler: the id.
        weight_word, weight_bytes: the bits of the weight; without weights 0 bytes.
    """
    row = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if row >= batch or load_as(empty, row, np.int32) == 0:
        return
    index = first + load(offsets, row)
    store_integer(as_words(out_ids), index, filler, kind)
    store(out_indices, 2 * index, row)
    store(out_indices, 2 * index + 1, 0)
    store_bits(as_words(out_weights), index, weight_word, weight_bytes)


def put_in_buckets(ids: int, kind: int, count: int, buckets: int, default: int) -> None:
    """Kernel, a thread for each id: those outside [0, buckets) become `default`."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k >= count:
        return
    number = integer_at(ids, k, kind)
    if number < 0 or number >= buckets:
        store_integer(as_words(ids), k, default, kind)


def fill_elements(target: int, count: int, bits: int, item: int) -> None:
    """Kernel, a thread for each element of 2, 4 or 8 bytes: sets them all to the same."""
    k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if k < count:
        store_bits(as_words(target), k, bits, item)
