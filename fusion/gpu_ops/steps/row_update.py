"""Rows after an update by an optimizer: FusedEmbeddingRowUpdate."""

from __future__ import annotations

from typing import NamedTuple

from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of, launch_for


class Slots(NamedTuple):
    """Addresses of the rows of a table and of an optimizer's variables; 0 for those that are not.

    Attributes:
        first, second, third: in the order of `fusion.cpu_ops.rules`.
    """

    first: int
    second: int
    third: int


def update_rows(
    device: Device,
    kind: int,
    rule: int,
    updates: int,
    old: Slots,
    new: Slots,
    numbers: int,
    elements: int,
    errors: int,
) -> None:
    """Writes what rows become.

    Args:
        kind: of their elements, float32 or float64 (`dtypes`).
        rule: its index in `fusion.cpu_ops.rules.RULES`.
        updates: gradients, as many elements as those of each slot.
        old, new: the rows before and, out, after.
        numbers: as many as the rule has.
        elements: of each slot.
        errors: an `ErrorRecord`, for a rate of ftrl that is not positive.
    """
    launch_for(
        device, "update", kind, blocks_of(elements), THREADS,
        rule, updates, old.first, old.second, old.third, new.first, new.second, new.third,
        numbers, elements, errors,
    )  # fmt: skip
