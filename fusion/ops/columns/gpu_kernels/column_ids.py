"""The distinct ids of many columns at once: distinct pairs of a column and an id.

As in `unique`, a hash table finds the first position of each, and prefix sums number them: those of
one column follow those of the columns before.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops import elements
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.kernels.elements import weight_at
from fusion.gpu_ops.kernels.tiles import column_of
from fusion.gpu_ops.kernels.unique import EMPTY, slot_of
from fusion.gpu_ops.language.device import (
    as_record,
    as_words,
    atomic_min,
    compare_and_swap,
    cuda,
    jit,
    load,
    load_as,
    on_device,
    store,
    store_as,
)
from fusion.gpu_ops.layout.call import PreLookupCall
from fusion.gpu_ops.layout.records import ListedElements, NumberedEntries, Pairs
from fusion.ops.columns.gpu_kernels.listing import column_attrs, column_inputs, fills_entries
from fusion.ops.columns.gpu_kernels.slots import entries_before, fillers_before, position_count
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import INT64

#: The bit position of a column's number in a word with a small id.
_COLUMN_SHIFT = 40

put_weight = on_device(elements.put_weight)


def insert_pairs(
    call_address: int, sums: int, keys: int, slots: int, bits: int, id_slots: int
) -> None:
    """Kernel, a thread for each position that there may be: finds its slot.

    That gets the first position of its column with the same id.

    Args:
        sums, keys: as of `ListedElements` and `Pairs`.
        slots, bits: int64 [2**bits], all `EMPTY`, at least twice as many as positions.
        id_slots: out, as of `Pairs`.
    """
    call = as_record(PreLookupCall, call_address)
    own = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    firsts = call.entry_offsets
    columns = call.column_count
    if own >= firsts[columns]:
        return
    index = column_of(firsts, columns, own)
    first, end = firsts[index], firsts[index + 1]
    if own - first >= position_count(call, as_words(sums), index):
        store(id_slots, own, EMPTY)
        return
    key, mask = load(keys, own), (int64(1) << bits) - 1
    slot = slot_of(key ^ (index << _COLUMN_SHIFT), bits)
    while True:
        holder = load(slots, slot)
        if holder == EMPTY:
            holder = compare_and_swap(slots, slot, int64(EMPTY), own)
            if holder == EMPTY:
                break
        # Whichever position the slot has by now, it is one of the same pair.
        if first <= holder < end and load(keys, holder) == key:
            atomic_min(slots, slot, own, np.int64)
            break
        slot = (slot + 1) & mask
    store(id_slots, own, slot)


def mark_pairs(call_address: int, keys: int, slots: int, id_slots: int, marks: int) -> None:
    """Kernel, a thread for each position that there may be: 1 for the first of its pair, else 0.

    Of columns whose ids are to be sorted the largest one is written to the results.

    Args:
        keys, slots, id_slots: as of `Pairs`.
        marks: out, the same.
    """
    call = as_record(PreLookupCall, call_address)
    own = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    firsts = call.entry_offsets
    columns = call.column_count
    if own >= firsts[columns]:
        return
    slot = load(id_slots, own)
    is_first = slot != EMPTY and load(slots, slot) == own
    store_as(marks, own, np.int32(is_first), np.int32)
    if not is_first:
        return
    index = column_of(firsts, columns, own)
    if as_record(ColumnAttrs, column_attrs(call, index)).sort_key == 0:
        return
    results, word = as_words(call.results), ErrorRecord.SIZE + 2 * columns + index
    # Few threads find a larger one than those before, so that few wait for each other.
    if ~load(keys, own) < results[word]:
        atomic_min(results, word, ~load(keys, own), np.int64)


def count_pairs(call_address: int, ranks: int) -> None:
    """Kernel, a thread for each column: writes how many distinct ids it has.

    Args:
        ranks: as of `Pairs`.
    """
    call = as_record(PreLookupCall, call_address)
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    firsts = call.entry_offsets
    columns = call.column_count
    if index < columns:
        distinct = load(ranks, firsts[index + 1]) - load(ranks, firsts[index])
        results = call.results
        store(results, ErrorRecord.SIZE + columns + index, distinct)


def list_pairs(call_address: int, paired: Pairs, words: int, owners: int) -> None:
    """Kernel, a thread for each position that there may be: by what pairs are to be sorted.

    Args:
        words: out, int64 by pair: the id, or where they stay in order the index in the column.
        owners: out, int32 by pair: the column.
    """
    call = as_record(PreLookupCall, call_address)
    own = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    firsts = call.entry_offsets
    columns = call.column_count
    if own >= firsts[columns] or load_as(paired.marks, own, np.int32) == 0:
        return
    index, number = column_of(firsts, columns, own), load(paired.ranks, own)
    word = number - load(paired.ranks, firsts[index])
    if as_record(ColumnAttrs, column_attrs(call, index)).sort_key != 0:
        word = load(paired.keys, own)
    store(words, number, word)
    store_as(owners, number, np.int32(index), np.int32)


def invert_order(order: int, count: int, numbers: int) -> None:
    """Kernel, a thread for each element: the position in an order of each, int64."""
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index < count:
        store(numbers, int64(load_as(order, index, np.int32)), index)


@jit
def _put_key(column: ColumnAttrs, target: Words, number: int, key: int) -> None:
    if column.keys_dtype == INT64:
        target[number] = key
    else:
        store_as(target, number, np.int32(key), np.int32)


@jit
def _put_weight(
    call: PreLookupCall,
    index: int,
    column: ColumnAttrs,
    source: ColumnInputs,
    element: int,
    weights: int,
    entry: int,
) -> None:
    """Writes the weight of an entry: of an element of all, or for -1 that of rows filled."""
    weight, dtype = 0.0, source.table_dtype
    if column.use_sparse_weights != 0:
        if element < 0:
            weight = column.default_weight
        else:
            k = element - call.element_offsets[index]
            weight = weight_at(source.weights, k, dtype)
    put_weight(weights, entry, weight, dtype)


def number_places(
    call_address: int, listed: ListedElements, paired: Pairs, numbers: int, out: NumberedEntries
) -> None:
    """Kernel, a thread for each position that there may be: writes distinct ids and entries.

    Args:
        numbers: int64, the number of each pair in an order of them; 0: in that of the ranks.
    """
    call = as_record(PreLookupCall, call_address)
    own = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    firsts = call.entry_offsets
    columns = call.column_count
    if own >= firsts[columns]:
        return
    index, batch = column_of(firsts, columns, own), call.batch_size
    column, source = (
        as_record(ColumnAttrs, column_attrs(call, index)),
        as_record(ColumnInputs, column_inputs(call, index)),
    )
    sums, first = as_words(listed.sums), firsts[index]
    entries = entries_before(call, sums, index, batch)
    if fills_entries(column):
        entries += fillers_before(call, sums, index, batch)
    if own - first >= entries:
        store_as(out.entries, own, np.int32(0), np.int32)
        if out.weights != 0:
            put_weight(out.weights, own, 0.0, source.table_dtype)
    if load(paired.id_slots, own) == EMPTY:
        return
    head = load(paired.slots, load(paired.id_slots, own))
    number = load(paired.ranks, head)
    if numbers != 0:
        number = load(numbers, number)
    number -= load(paired.ranks, first)
    if head == own:
        _put_key(column, as_words(load(out.keys, index)), number, load(paired.keys, own))
    element, entry = int64(load_as(paired.sources, own, np.int32)), own
    if not fills_entries(column) and column.fill_empty_row != 0:
        if element < 0:
            return
        row = int64(load_as(listed.owners, element, np.int32)) - index * batch
        entry -= fillers_before(call, sums, index, row)
    store_as(out.entries, entry, np.int32(number), np.int32)
    if out.weights != 0:
        _put_weight(call, index, column, source, element, out.weights, entry)
