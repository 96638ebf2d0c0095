"""What takes several launches: which kernels, in which order, with which memory between them.

Everything is an address; who has the memory and launches kernels is a `Device`. Nothing waits for
the GPU but `Device.word`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fusion.cpu_ops.column_words import INT32, INT64
from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops import scan, sort

#: Threads of a block of kernels that have one for each element.
_THREADS = 128
#: With all bits set a word is -1, which is `unique.EMPTY`.
_ALL_BITS = 0xFF


class Device(Protocol):
    """Who launches kernels and has memory for them."""

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: int) -> None:
        """Launches a kernel of `kernels.KERNELS` behind those before."""

    def room(self, size: int, byte: int) -> int:
        """The address of so many new bytes, all of one value; a multiple of 16."""

    def word(self, address: int) -> int:
        """The 64-bit integer at an address, after all that was launched."""


@dataclass(frozen=True)
class Unique:
    """Distinct ids.

    Attributes:
        count: how many there are.
        keys: their address, of the dtype of the ids.
        places: int32, which of them each id is.
        counts: int32, how often each occurs.
    """

    count: int
    keys: int
    places: int
    counts: int


@dataclass(frozen=True)
class Pruned:
    """The entries that are left of a batch; addresses, see PruneInvalidAndFillEmptyRows.

    Attributes:
        count: how many there are.
        ids, indices, weights: of them; the last is 0 without weights.
        empty: int32, 1 for each row that kept none.
    """

    count: int
    ids: int
    indices: int
    weights: int
    empty: int


@dataclass(frozen=True)
class Entries:
    """The entries of a batch of sparse ids.

    Attributes:
        ids, kind, count: their ids, of a kind of integers.
        indices: int64 [count, 2].
        batch: rows of the batch.
        weights, weight_kind, weight_bytes: their weights; 0 without.
    """

    ids: int
    kind: int
    count: int
    indices: int
    batch: int
    weights: int = 0
    weight_kind: int = 0
    weight_bytes: int = 0


def blocks_of(threads: int) -> int:
    """The blocks of a launch with at least one thread for each element."""
    return max(-(-threads // _THREADS), 1)


def id_bytes(kind: int) -> int:
    """The bytes of an id."""
    return 8 if kind == INT64 else 4


def prefix_sums(device: Device, counts: int, count: int) -> tuple[int, int]:
    """Of int32 counts, the sums of all before each, int64, and the address of that of all."""
    tiles = scan.tiles_of(count)
    sums, places = device.room(8 * (tiles + 1), 0), device.room(8 * count, 0)
    device.launch("sum_tiles", tiles, scan.THREADS, counts, count, sums)
    device.launch("scan_sums", 1, scan.THREADS, sums, tiles)
    device.launch("scan_tiles", tiles, scan.THREADS, counts, count, sums, places)
    return places, sums + 8 * tiles


def stable_order(device: Device, keys: int, count: int, most: int) -> int:
    """Int32 [count], the places of int32 keys up to `most` in their order, stably."""
    order, tiles = 0, max(-(-count // scan.THREADS), 1)
    for shift in range(0, max(most.bit_length(), 1), 8):
        counts = device.room(4 * sort.MOST_KEYS * tiles, 0)
        given = keys, INT32, order, count, shift, tiles
        device.launch("count_keys", tiles, scan.THREADS, *given, counts)
        starts, _ = prefix_sums(device, counts, sort.MOST_KEYS * tiles)
        target = device.room(4 * count, 0)
        device.launch("place_keys", tiles, scan.THREADS, *given, starts, target)
        order = target
    return order


def unique(device: Device, ids: int, kind: int, count: int) -> Unique:
    """The distinct ids of `count`, in order of first occurrence; waits for their number."""
    bits, blocks = max((2 * count - 1).bit_length(), 1), blocks_of(count)
    slots = device.room(8 << bits, _ALL_BITS)
    found, firsts = device.room(8 * count, 0), device.room(4 * count, 0)
    device.launch("insert_ids", blocks, _THREADS, ids, kind, count, slots, bits, found)
    device.launch("mark_firsts", blocks, _THREADS, slots, found, count, firsts)
    ranks, total = prefix_sums(device, firsts, count)
    number = device.word(total)
    keys, places = device.room(id_bytes(kind) * number, 0), device.room(4 * count, 0)
    counts = device.room(4 * number, 0)
    given = ids, kind, count, slots, found, ranks
    device.launch("number_ids", blocks, _THREADS, *given, keys, places, counts)
    return Unique(number, keys, places, counts)


def prune(
    device: Device, given: Entries, least: int, filler: int | None, weight: int, trouble: int
) -> Pruned:
    """The entries that are kept, and those that fill rows; waits for their number.

    Args:
        least: the least id that is kept.
        filler: the id of rows that keep none; None: they stay so.
        weight: the bits of its weight.
        trouble: words as of a call, told of rows outside the batch.
    """
    count, batch = given.count, given.batch
    kept, empty = device.room(4 * count, 0), numbers(device, batch, 1)
    ids = given.ids, given.kind, count
    weights = given.weights, given.weight_kind
    rest = least, batch, kept, empty, trouble
    device.launch("mark_entries", blocks_of(count), _THREADS, *ids, given.indices, *weights, *rest)
    places, total = prefix_sums(device, kept, count)
    fillers, more = prefix_sums(device, empty, batch)
    first = device.word(total)
    number = first + (device.word(more) if filler is not None else 0)
    size, heavy = id_bytes(given.kind), given.weight_bytes
    outs = (
        device.room(size * number, 0),
        device.room(16 * number, 0),
        device.room(heavy * number, 0),
    )
    sources = given.ids, size, given.indices, given.weights, heavy
    device.launch("put_entries", blocks_of(count), _THREADS, count, kept, places, *sources, *outs)
    if filler is not None:
        what = batch, empty, fillers, first, filler, given.kind, weight, heavy
        device.launch("fill_rows", blocks_of(batch), _THREADS, *what, *outs)
    return Pruned(number, outs[0], outs[1], outs[2] if heavy else 0, empty)


def numbers(device: Device, count: int, number: int) -> int:
    """Int32 [count], all one number."""
    address = device.room(4 * count, 0)
    device.launch("fill_numbers", blocks_of(count), _THREADS, address, count, number)
    return address


@dataclass(frozen=True)
class GradEntries:
    """The entries of a gradient.

    Attributes:
        count, unique: how many they are, and the distinct ids of all columns.
        keys: int32 [count], all `unique` before.
        starts: int64 [unique + 1].
    """

    count: int
    unique: int
    keys: int
    starts: int


def add_up(
    device: Device,
    stored: str,
    call: int,
    entries: GradEntries,
    batch_rows: int,
    tiles: int,
) -> None:
    """Adds up the gradients of a call.

    Args:
        call: its words (`call_words.GRAD_COUNT` ...).
        entries: its entries, with the addresses that the words have.
        batch_rows: rows of all columns.
        tiles: blocks of the launch that adds them up.
    """
    device.launch("own_entries", blocks_of(batch_rows), _THREADS, call)
    order = stable_order(device, entries.keys, entries.count, entries.unique)
    given = entries.keys, order, entries.count, entries.unique, entries.starts
    device.launch("mark_starts", blocks_of(entries.count + 1), _THREADS, *given)
    if tiles:
        device.launch(f"scatter_{stored}", tiles, call_of.THREADS, call, order)


@dataclass(frozen=True)
class Bags:
    """Entries in the order of their bags.

    Attributes:
        addresses: int64, of the row of each; -1 for those that do not count.
        starts: int64 [batch + 1], where the entries of each bag start.
        counts: int32 [batch], how many each has.
        weights: of each; 0 without.
    """

    addresses: int
    starts: int
    counts: int
    weights: int


@dataclass(frozen=True)
class Gathered:
    """Rows of distinct ids, gathered from shards.

    Attributes:
        shards, shard_count: int64 [shard_count, 2], address and rows of each shard.
        row_bytes: of each row.
        unique: the distinct ids.
        permutation: int32 [unique, 2], shard and place; 0 with one shard.
    """

    shards: int
    shard_count: int
    row_bytes: int
    unique: int
    permutation: int = 0


def bags(
    device: Device, given: Entries, places: int, rows: Gathered, masked: int, trouble: int
) -> Bags:
    """The entries of bags whose rows were gathered.

    Args:
        given: entries, of whose ids only the number counts.
        places: int32, which distinct id each entry has.
        masked: bool by row, whose entries do not count; 0: there are none.
        trouble: words as of a call.
    """
    count, batch, blocks = given.count, given.batch, blocks_of(given.count)
    owners, starts = device.room(4 * count, 0), device.room(8 * (batch + 1), 0)
    device.launch("rows_of_entries", blocks, _THREADS, given.indices, count, batch, owners, trouble)
    order = stable_order(device, owners, count, batch)
    told = owners, order, count, batch, starts
    device.launch("mark_starts", blocks_of(count + 1), _THREADS, *told)
    addresses, counts = device.room(8 * count, 0), device.room(4 * batch, 0)
    where = places, rows.unique, rows.permutation, rows.shards, rows.shard_count, rows.row_bytes
    outs = owners, masked, addresses, trouble
    device.launch("address_entries", blocks, _THREADS, order, count, *where, *outs)
    device.launch("count_entries", blocks_of(batch), _THREADS, starts, batch, counts)
    weights = 0
    if given.weights:
        weights = device.room(given.weight_bytes * count, 0)
        what = order, count, given.weights, given.weight_bytes, weights
        device.launch("order_weights", blocks, _THREADS, *what)
    return Bags(addresses, starts, counts, weights)
