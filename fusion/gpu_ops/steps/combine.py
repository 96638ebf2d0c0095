"""Rows combined into bags, all columns of a call: one launch for plain ones, one for the others."""

from __future__ import annotations

from fusion.cpu_ops.column_words import BFLOAT16, FLOAT16, FLOAT32
from fusion.gpu_ops.call_words import THREADS
from fusion.gpu_ops.steps.device import Device


def check_rows(device: Device, call: int, tiles: int) -> None:
    """Looks at the rows of entries of a call, in so many tiles."""
    device.launch("check_rows", tiles, THREADS, call)


def combine_plain(device: Device, kind: int, call: int, blocks: int, tiles: int) -> None:
    """Computes the plain columns of a call, of tables of a kind of numbers.

    Args:
        blocks, tiles: how many tiles there are, and where they are described.
    """
    if kind == FLOAT32:
        device.launch("combine_float32", blocks, THREADS, call, tiles)
    elif kind == FLOAT16:
        device.launch("combine_float16", blocks, THREADS, call, tiles)
    elif kind == BFLOAT16:
        device.launch("combine_bfloat16", blocks, THREADS, call, tiles)
    else:
        device.launch("combine_float64", blocks, THREADS, call, tiles)


def combine_others(device: Device, kind: int, call: int, blocks: int, tiles: int) -> None:
    """As `combine_plain`, for the columns that are not plain."""
    if kind == FLOAT32:
        device.launch("combine_any_float32", blocks, THREADS, call, tiles)
    elif kind == FLOAT16:
        device.launch("combine_any_float16", blocks, THREADS, call, tiles)
    elif kind == BFLOAT16:
        device.launch("combine_any_bfloat16", blocks, THREADS, call, tiles)
    else:
        device.launch("combine_any_float64", blocks, THREADS, call, tiles)
