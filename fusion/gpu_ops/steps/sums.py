"""Prefix sums, and stable sorting by them."""

from __future__ import annotations

from fusion.gpu_ops.kernels.scan import THREADS as SCAN_THREADS
from fusion.gpu_ops.kernels.scan import tiles_of
from fusion.gpu_ops.kernels.sort import DIGIT_BITS, MAX_KEYS, TILE
from fusion.gpu_ops.layout.records import GroupOrder
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.runtime.tensorflow.dtypes import INT32


def sums_into(device: Device, counts: int, count: int, offsets: int, total: int) -> None:
    """Writes the exclusive prefix sums of int32 counts, int64, and their total.

    Args:
        offsets, total: where they go.
    """
    tiles = tiles_of(count)
    sums = device.reserve(8 * tiles)
    device.launch("sum_tiles", tiles, SCAN_THREADS, counts, count, sums)
    device.launch("scan_sums", 1, SCAN_THREADS, sums, tiles, total)
    device.launch("scan_tiles", tiles, SCAN_THREADS, counts, count, sums, offsets)


def prefix_sums(device: Device, counts: int, count: int, total: int) -> int:
    """The address of what `sums_into` makes of int32 counts."""
    offsets = device.reserve(8 * count)
    sums_into(device, counts, count, offsets, total)
    return offsets


def bits_of(max_key: int) -> int:
    """The bits by which keys up to `max_key` are sorted: whole digits, at least one."""
    bits = DIGIT_BITS
    while bits < 64 and max_key >> bits > 0:
        bits += DIGIT_BITS
    return bits


def stable_order(device: Device, keys: int, count: int, max_key: int) -> int:
    """Int32 [count], the stable order of int32 keys up to `max_key`."""
    return order_from(device, 0, keys, INT32, count, bits_of(max_key))


def order_from(device: Device, order: int, keys: int, dtype: int, count: int, bits: int) -> int:
    """Int32 [count], the elements of `order` by their keys, stably.

    Args:
        order: int32 [count], or 0: elements as they lie, also of the result if there are no bits.
        keys, dtype: integers, by element; the lowest `bits` of them count, as a number >= 0.
    """
    tiles, shift = max((count + TILE - 1) // TILE, 1), 0
    starts, total = device.reserve(8 * MAX_KEYS * tiles), device.reserve(8)
    while shift < bits:
        counts = device.filled(4 * MAX_KEYS * tiles, 0)
        device.launch("count_keys", tiles, TILE, keys, dtype, order, count, shift, tiles, counts)
        sums_into(device, counts, MAX_KEYS * tiles, starts, total)
        target = device.reserve(4 * count)
        device.launch(
            "place_keys", tiles, TILE,
            keys, dtype, order, count, shift, tiles, starts, target,
        )  # fmt: skip
        order = target
        shift += DIGIT_BITS
    return order


def mark_starts(device: Device, owners: int, order: int, number: int, groups: int) -> GroupOrder:
    """Elements whose order is known, see `GroupOrder`."""
    ordered = GroupOrder(number, groups, owners, order, device.reserve(8 * (groups + 1)))
    device.launch("mark_starts", blocks_of(number + 1), THREADS, ordered)
    return ordered


def order_by(device: Device, owners: int, number: int, groups: int) -> GroupOrder:
    """Elements in the order of their groups, see `GroupOrder`."""
    order = stable_order(device, owners, number, groups)
    return mark_starts(device, owners, order, number, groups)


def inverse_of(device: Device, order: int, count: int) -> int:
    """The inverse of an int32 order, int64 [count]: the index of each element in it."""
    address = device.reserve(8 * count)
    device.launch("invert_order", blocks_of(count), THREADS, order, count, address)
    return address


def numbers(device: Device, count: int, number: int) -> int:
    """Int32 [count], filled with a number."""
    address = device.reserve(4 * count)
    device.launch("fill_numbers", blocks_of(count), THREADS, address, count, number)
    return address
