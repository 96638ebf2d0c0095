"""Gradients of bags, added up by distinct id."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.layout.call import THREADS as CALL_THREADS
from fusion.gpu_ops.layout.records import GroupOrder
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of, launch_for
from fusion.gpu_ops.steps.sums import stable_order


class GradEntries(NamedTuple):
    """The entries of a gradient.

    Attributes:
        number, unique: how many they are, and the distinct ids of all columns.
        keys: int32 [number], all `unique` before.
        starts: int64 [unique + 1].
    """

    number: int
    unique: int
    keys: int
    starts: int


def order_entries(device: Device, call: int, entries: GradEntries, batch_rows: int) -> int:
    """The entries of a call by their distinct ids, int32 [count].

    Args:
        call: a `GradientCall`.
        entries: its entries, with the addresses that the words have.
        batch_rows: rows of all columns.
    """
    device.launch("own_entries", blocks_of(batch_rows), THREADS, call)
    order = stable_order(device, entries.keys, entries.number, entries.unique)
    ordered = GroupOrder(entries.number, entries.unique, entries.keys, order, entries.starts)
    device.launch("mark_starts", blocks_of(entries.number + 1), THREADS, ordered)
    return order


def scatter(device: Device, dtype: int, call: int, order: int, blocks: int) -> None:
    """Adds up the gradients of a call, of a dtype, whose entries are in order."""
    launch_for(device, "scatter", dtype, blocks, CALL_THREADS, call, order)
