"""Prefix sums, and what follows from them: stable sorting."""

from __future__ import annotations

from fusion.cpu_ops.column_words import INT32
from fusion.gpu_ops.scan import THREADS as TILE_THREADS
from fusion.gpu_ops.scan import tiles_of
from fusion.gpu_ops.sort import MOST_KEYS
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of


def sums_into(device: Device, counts: int, count: int, places: int, total: int) -> None:
    """Of int32 counts, the sums of all before each, int64, and the sum of all.

    Args:
        places, total: where they go.
    """
    tiles = tiles_of(count)
    sums = device.room(8 * tiles)
    device.launch("sum_tiles", tiles, TILE_THREADS, counts, count, sums)
    device.launch("scan_sums", 1, TILE_THREADS, sums, tiles, total)
    device.launch("scan_tiles", tiles, TILE_THREADS, counts, count, sums, places)


def prefix_sums(device: Device, counts: int, count: int, total: int) -> int:
    """The address of what `sums_into` makes of int32 counts."""
    places = device.room(8 * count)
    sums_into(device, counts, count, places, total)
    return places


def stable_order(device: Device, keys: int, count: int, most: int) -> int:
    """Int32 [count], the places of int32 keys up to `most` in their order, stably."""
    return order_by(device, keys, INT32, 0, count, most)


def order_by(device: Device, keys: int, kind: int, order: int, count: int, most: int) -> int:
    """Int32 [count], places in the order of their keys; of the same key they stay in order.

    Args:
        keys, kind: integers of a kind, none of which is negative or above `most`.
        order: int32 [count], places in the order that they have by now; 0: as they lie.
    """
    tiles, shift = max((count + TILE_THREADS - 1) // TILE_THREADS, 1), 0
    starts, total = device.room(8 * MOST_KEYS * tiles), device.room(8)
    while shift == 0 or (shift < 64 and most >> shift > 0):
        counts = device.filled(4 * MOST_KEYS * tiles, 0)
        device.launch(
            "count_keys", tiles, TILE_THREADS, keys, kind, order, count, shift, tiles, counts
        )
        sums_into(device, counts, MOST_KEYS * tiles, starts, total)
        target = device.room(4 * count)
        device.launch(
            "place_keys", tiles, TILE_THREADS,
            keys, kind, order, count, shift, tiles, starts, target,
        )  # fmt: skip
        order = target
        shift += 8
    return order


def inverse_of(device: Device, order: int, count: int) -> int:
    """Int64 [count], of each element its place in an order, int32."""
    address = device.room(8 * count)
    device.launch("invert_order", blocks_of(count), THREADS, order, count, address)
    return address


def numbers(device: Device, count: int, number: int) -> int:
    """Int32 [count], all one number."""
    address = device.room(4 * count)
    device.launch("fill_numbers", blocks_of(count), THREADS, address, count, number)
    return address
