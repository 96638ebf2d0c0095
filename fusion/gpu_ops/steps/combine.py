"""Rows combined into bags, all columns of a call in one launch."""

from __future__ import annotations

from fusion.gpu_ops.layout.call import THREADS
from fusion.gpu_ops.steps.device import Device, launch_for


def check_rows(device: Device, call: int, tiles: int) -> None:
    """Checks the rows of entries of a call, in so many tiles."""
    device.launch("check_rows", tiles, THREADS, call)


def combine_columns(device: Device, dtype: int, call: int, tiles: int, is_plain: int) -> None:
    """Computes the columns of a call, of tables of a dtype, in so many tiles.

    Args:
        is_plain: whether all are plain.
    """
    if is_plain != 0:
        launch_for(device, "combine", dtype, tiles, THREADS, call)
    else:
        launch_for(device, "combine_any", dtype, tiles, THREADS, call)
