"""The entries and distinct ids of many columns: GroupedEmbeddingPreLookUp.

    list_entries -> Device.words(call.results, result_words(columns)) -> number_entries

The results say how many distinct ids each column has, and what is wrong; nothing of
`number_entries` may be launched if anything is. Of a call with `is_batch_open` they say how many
rows there are, too, and `split_rows` writes the entries of each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fusion.gpu_ops.layout.records import ListedElements, NumberedEntries, Pairs
from fusion.gpu_ops.steps.device import ALL_BITS, THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import bits_of, inverse_of, order_from, stable_order, sums_into
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.tensorflow.dtypes import INT32, INT64


class PreCall(NamedTuple):
    """A call for many columns.

    Attributes:
        words, results: addresses of its `PreLookupCall`, and of the results.
        columns, batch: the columns, and the rows of each; 1 as long as these are not known.
        elements: the elements of all columns.
        entries: the entries at most, the last of `entry_offsets`.
    """

    words: int
    results: int
    columns: int
    batch: int
    elements: int
    entries: int


def _sums_with_total(device: Device, marks: int, number: int) -> int:
    """Int64 [number + 1], the prefix sums of marks, and the sum of all."""
    sums = device.reserve(8 * (number + 1))
    sums_into(device, marks, number, sums, sums + 8 * number)
    return sums


def _pairs(
    device: Device, call: PreCall, listed: ListedElements, ranks: int, is_ordered: int, splits: int
) -> Pairs:
    """Finds the positions of elements and rows, and the first one of each pair."""
    rows, entries, blocks = call.columns * (call.batch + 1), call.entries, blocks_of(call.entries)
    keys, sources = device.reserve(8 * entries), device.reserve(4 * entries)
    device.launch(
        "place_elements", blocks_of(call.elements), THREADS,
        call.words, listed, ranks, is_ordered, keys, sources,
    )  # fmt: skip
    device.launch(
        "place_rows", blocks_of(rows), THREADS,
        call.words, listed.sums, is_ordered, keys, sources, splits,
    )  # fmt: skip
    bits = 1
    while 1 << bits < 2 * entries:
        bits += 1
    slots, id_slots = device.filled(8 << bits, ALL_BITS), device.reserve(8 * entries)
    device.launch(
        "insert_pairs", blocks, THREADS, call.words, listed.sums, keys, slots, bits, id_slots
    )
    marks = device.reserve(4 * entries)
    device.launch("mark_pairs", blocks, THREADS, call.words, keys, slots, id_slots, marks)
    return Pairs(keys, sources, slots, id_slots, marks, _sums_with_total(device, marks, entries))


def list_entries(device: Device, call: PreCall, splits: int) -> tuple[ListedElements, Pairs]:
    """Lists what counts, and finds how many distinct ids each column has.

    Args:
        splits: out, int32 [columns, batch + 1], where the entries of each row start.
    """
    elements, rows = call.elements, call.columns * call.batch
    ids, owners = device.reserve(8 * elements), device.reserve(4 * elements)
    marks = device.filled(4 * (elements + 2 * rows), 0)
    device.launch("mark_elements", blocks_of(elements), THREADS, call.words, ids, owners, marks)
    row_threads = call.columns * (call.batch + 1)
    device.launch("mark_rows", blocks_of(row_threads), THREADS, call.words, marks)
    listed = ListedElements(ids, owners, _sums_with_total(device, marks, elements + 2 * rows))
    paired = _pairs(device, call, listed, 0, 0, splits)
    device.launch("count_pairs", blocks_of(call.columns), THREADS, call.words, paired.ranks)
    return listed, paired


def split_rows(
    device: Device, call: PreCall, listed: ListedElements, batch: int, splits: int
) -> None:
    """Writes where the entries of each row of an open call start.

    Args:
        listed: of `list_entries`.
        batch: the rows.
        splits: out, int32 [columns, batch + 1].
    """
    threads = call.columns * (batch + 1)
    device.launch("split_rows", blocks_of(threads), THREADS, call.words, listed.sums, batch, splits)


def _in_order_of_rows(device: Device, call: PreCall, listed: ListedElements, splits: int) -> Pairs:
    """As `_pairs`, once elements are sorted by their rows."""
    order = stable_order(device, listed.owners, call.elements, call.columns * call.batch)
    ranks = inverse_of(device, order, call.elements)
    return _pairs(device, call, listed, ranks, 1, splits)


def _sorted_pairs(device: Device, call: PreCall, paired: Pairs, pairs: int, largest: int) -> int:
    """The number of each pair in the order of columns and of the ids of those that are sorted.

    Args:
        pairs, largest: how many there are, and the largest id that is sorted.
    """
    words, owners = device.reserve(8 * pairs), device.reserve(4 * pairs)
    blocks = blocks_of(call.entries)
    device.launch("list_pairs", blocks, THREADS, call.words, paired, words, owners)
    order = order_from(device, 0, words, INT64, pairs, bits_of(max(largest, pairs)))
    order = order_from(device, order, owners, INT32, pairs, bits_of(call.columns))
    return inverse_of(device, order, pairs)


def number_entries(
    device: Device,
    call: PreCall,
    listed: ListedElements,
    paired: Pairs,
    results: Any,
    splits: int,
    out: NumberedEntries,
) -> None:
    """Writes the distinct ids of all columns, and which of them each entry is.

    Args:
        listed, paired: of `list_entries`.
        results: int64 [result_words(columns)], see `PreLookupCall`.
        splits: as of `list_entries`; written again where elements are not in the order of rows.
    """
    unsorted, pairs, largest = 0, 0, -1
    for index in range(call.columns):
        unsorted += results[ErrorRecord.SIZE + index]
        pairs += results[ErrorRecord.SIZE + call.columns + index]
        largest = max(largest, ~results[ErrorRecord.SIZE + 2 * call.columns + index])
    if unsorted > 0:
        paired = _in_order_of_rows(device, call, listed, splits)
    numbers = 0
    if largest >= 0:
        numbers = _sorted_pairs(device, call, paired, pairs, largest)
    blocks = blocks_of(call.entries)
    device.launch("number_places", blocks, THREADS, call.words, listed, paired, numbers, out)
