"""All kernels for GPUs, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusion.gpu_ops.layout.call import WARP

#: Dtypes of tables, and those of which a thread has eight elements at once.
_STORED = ("float16", "bfloat16", "float32", "float64")
_EIGHT = ("float16", "bfloat16")


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        make: () -> the Python function that Numba compiles.
        arguments: how many 64-bit integers it takes.
        registers: the most that a thread of it may have.
        together: how many threads, side by side, do something together: blocks of any size that it
            divides will do. None: a block is for a tile, and as large as its launch says.
    """

    make: Callable[[], Any]
    arguments: int
    registers: int
    together: int | None = None


def _combine(stored: str, *, is_plain: bool) -> Kernel:
    def make() -> Any:
        from fusion.gpu_ops.kernels.combine import combine_kernel

        return combine_kernel(stored, is_plain)

    # So many blocks are on a multiprocessor, for all of which rows are on their way: of plain
    # columns six, or five if a thread has eight elements; of any four, or three.
    plain, other = (96, 168) if stored in _EIGHT else (80, 128)
    return Kernel(make, 1, plain if is_plain else other)


def _scatter(stored: str) -> Kernel:
    def make() -> Any:
        from fusion.gpu_ops.kernels.column_gradient import scatter_kernel

        return scatter_kernel(stored)

    return Kernel(make, 2, _scatter_registers(stored))


def _scatter_registers(stored: str) -> int:
    return 80 if stored == "float32" else 96


def _scatter_bags(stored: str) -> Kernel:
    def make() -> Any:
        from fusion.gpu_ops.kernels.bag_gradient import scatter_bags_kernel

        return scatter_bags_kernel(stored)

    return Kernel(make, 19, _scatter_registers(stored), together=WARP)


def _update(stored: str) -> Kernel:
    def make() -> Any:
        from fusion.gpu_ops.kernels.row_update import update_kernel

        return update_kernel(stored)

    return Kernel(make, 11, 64, together=1)


def _of(module: str, name: str, arguments: int) -> Kernel:
    def make() -> Any:
        return getattr(importlib.import_module(f"fusion.gpu_ops.kernels.{module}"), name)

    make.__module__ = f"fusion.gpu_ops.kernels.{module}"  # whose sources the kernel is made from
    together = None if name in _OF_TILES else 1
    return Kernel(make, arguments, _REGISTERS.get(name, 64), together)


def _check_rows() -> Any:
    from fusion.gpu_ops.kernels.combine import check_rows_kernel

    return check_rows_kernel()


#: Kernels that are functions of modules: how many arguments each has.
_STEPS = {
    "scan": {"sum_tiles": 3, "scan_sums": 3, "scan_tiles": 4, "fill_numbers": 3},
    "unique": {"insert_ids": 6, "mark_firsts": 4, "number_ids": 9},
    "sort": {"count_keys": 7, "place_keys": 8},
    "column_gradient": {"own_entries": 1},
    "entries": {
        "rows_of_entries": 5,
        "mark_starts": 5,
        "address_entries": 14,
        "number_rows": 11,
        "check_pairs": 7,
        "find_last_row": 4,
        "count_entries": 3,
        "order_weights": 5,
    },
    "partition": {
        "key_ids": 9,
        "place_ids": 12,
        "key_candidates": 13,
        "candidate_rows": 5,
        "place_candidates": 17,
    },
    "sharded_entries": {
        "join_parts": 9,
        "address_parts": 12,
        "join_weights": 7,
        "split_weights": 6,
    },
    "prune": {
        "mark_entries": 11,
        "put_entries": 11,
        "fill_rows": 11,
        "put_in_buckets": 5,
        "fill_elements": 4,
    },
    "prune_dense": {"mark_dense": 14, "put_dense": 8, "put_row_flags": 5},
    "listing": {"mark_elements": 4, "mark_rows": 2},
    "slots": {"place_elements": 8, "place_rows": 6, "split_rows": 4},
    "column_ids": {
        "insert_pairs": 6,
        "mark_pairs": 5,
        "count_pairs": 2,
        "list_pairs": 6,
        "invert_order": 3,
        "number_places": 12,
    },
    "bag_gradient": {"scale_bags": 7},
    "max_norm": {"measure_rows": 11, "unclip_rows": 12},
    "weight_gradient": {"total_bags": 15, "through_bags": 9, "weight_grads": 21},
}

#: Those of them that need more than 64 registers.
_REGISTERS = {"measure_rows": 96}

#: Those of them that have a block for each tile.
_OF_TILES = ("sum_tiles", "scan_sums", "scan_tiles", "count_keys", "place_keys")

KERNELS: dict[str, Kernel] = {
    **{f"combine_{stored}": _combine(stored, is_plain=True) for stored in _STORED},
    **{f"combine_any_{stored}": _combine(stored, is_plain=False) for stored in _STORED},
    **{f"scatter_{stored}": _scatter(stored) for stored in _STORED},
    **{f"scatter_bags_{stored}": _scatter_bags(stored) for stored in _STORED},
    **{f"update_{stored}": _update(stored) for stored in ("float32", "float64")},
    "check_rows": Kernel(_check_rows, 1, 64),
    **{
        name: _of(module, name, arguments)
        for module, kernels in _STEPS.items()
        for name, arguments in kernels.items()
    },
}
