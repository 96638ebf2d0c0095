"""Rows combined into bags, all columns of a call in one launch."""

from __future__ import annotations

from fusion.gpu_ops.layout.call import THREADS
from fusion.gpu_ops.steps.device import Device
from fusion.runtime.tensorflow.dtypes import BFLOAT16, FLOAT16, FLOAT32


def check_rows(device: Device, call: int, tiles: int) -> None:
    """Looks at the rows of entries of a call, in so many tiles."""
    device.launch("check_rows", tiles, THREADS, call)


def combine_columns(device: Device, kind: int, call: int, tiles: int, is_plain: int) -> None:
    """Computes the columns of a call, of tables of a kind of numbers, in so many tiles.

    Args:
        is_plain: whether all are plain.
    """
    if is_plain != 0:
        _combine_plain(device, kind, call, tiles)
    else:
        _combine_any(device, kind, call, tiles)


def _combine_plain(device: Device, kind: int, call: int, tiles: int) -> None:
    if kind == FLOAT32:
        device.launch("combine_float32", tiles, THREADS, call)
    elif kind == FLOAT16:
        device.launch("combine_float16", tiles, THREADS, call)
    elif kind == BFLOAT16:
        device.launch("combine_bfloat16", tiles, THREADS, call)
    else:
        device.launch("combine_float64", tiles, THREADS, call)


def _combine_any(device: Device, kind: int, call: int, tiles: int) -> None:
    if kind == FLOAT32:
        device.launch("combine_any_float32", tiles, THREADS, call)
    elif kind == FLOAT16:
        device.launch("combine_any_float16", tiles, THREADS, call)
    elif kind == BFLOAT16:
        device.launch("combine_any_bfloat16", tiles, THREADS, call)
    else:
        device.launch("combine_any_float64", tiles, THREADS, call)
