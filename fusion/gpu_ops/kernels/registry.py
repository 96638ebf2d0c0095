"""All kernels for GPUs, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, get_type_hints

from fusion.gpu_ops.layout.arguments import Argument, flat, grouped
from fusion.gpu_ops.layout.call import WARP
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        make: () -> the Python function that Numba compiles.
        registers: the most that a thread of it may have.
        together: how many threads, side by side, do something together: blocks of any size that it
            divides will do. None: a block is for a tile.
        is_of_any_size: whether a block for a tile may have fewer threads than its launch says.
        spilled: at most so many bytes of a thread's registers are in memory for some time.
    """

    make: Callable[[], Any]
    registers: int
    together: int | None = None
    is_of_any_size: bool = False
    spilled: int = 0

    @cached_property
    def parameters(self) -> tuple[Any, ...]:
        """The types of its parameters: `int`, or the class of a record."""
        hints = get_type_hints(self.make())
        del hints["return"]
        return tuple(hints.values())

    @cached_property
    def arguments(self) -> int:
        """How many 64-bit integers it takes."""
        return len([*flat(grouped(self.parameters, repeat(0)))])

    def grouped(self, arguments: Iterable[Argument]) -> list[Argument]:
        """Arguments of these types, from records or from the integers of them."""
        integers = [*flat(arguments)]
        if len(integers) != self.arguments:
            raise TypeError(f"{len(integers)} integers for a kernel that takes {self.arguments}")
        return grouped(self.parameters, iter(integers))


_BAGS = "gpu_ops.kernels.bags.combine"
_BAGS_GRADIENTS = "ops.bags.gpu_kernels.gradients"
_COLUMNS_GRADIENTS = "ops.columns.gpu_kernels.gradients"


def _making(module: str, use: Callable[[Any], Any]) -> Callable[[], Any]:
    """What makes a kernel of a module's contents, and imports it only then."""
    path = f"fusion.{module}"

    def make() -> Any:
        return use(importlib.import_module(path))

    make.__module__ = path  # whose sources the kernel is made from
    return make


def _combine(stored: str, *, is_plain: bool) -> Kernel:
    # So many blocks are on a multiprocessor, for all of which rows are on their way: of plain
    # columns six, or five if a thread has eight elements; of any four, or three.
    plain, other = (96, 168) if DTYPES[stored].item_bytes == 2 else (80, 128)
    make = _making(_BAGS, lambda module: module.combine_kernel(stored, is_plain))
    if is_plain and stored == "float32":
        # Eight blocks: no workload took longer on an H200, and bags of few rows a sixth less time.
        # What is spilled is read once for a bag, or where a bag is slow.
        return Kernel(make, 64, spilled=160)
    return Kernel(make, plain if is_plain else other)


def _scatter_registers(stored: str) -> int:
    return 80 if stored == "float32" else 96


#: What a thread spills on some GPUs; with more registers a multiprocessor would have a block less.
_SCATTER_SPILLED = {"float16": 8, "bfloat16": 8, "float32": 28}
_SCATTER_BAGS_SPILLED = {"float64": 8}


def _scatter(stored: str) -> Kernel:
    make = _making(_COLUMNS_GRADIENTS, lambda module: module.scatter_kernel(stored))
    registers, spilled = _scatter_registers(stored), _SCATTER_SPILLED.get(stored, 0)
    return Kernel(make, registers, spilled=spilled)


def _scatter_bags(stored: str) -> Kernel:
    make = _making(_BAGS_GRADIENTS, lambda module: module.scatter_bags_kernel(stored))
    registers, spilled = _scatter_registers(stored), _SCATTER_BAGS_SPILLED.get(stored, 0)
    return Kernel(make, registers, together=WARP, spilled=spilled)


def _of(module: str, name: str) -> Kernel:
    is_of_tiles = name in _OF_TILES
    make = _making(module, lambda loaded: getattr(loaded, name))
    return Kernel(make, _REGISTERS.get(name, 64), None if is_of_tiles else 1, is_of_tiles)


#: Kernels that are functions of modules.
_FUNCTIONS = {
    "gpu_ops.kernels.scan": ("sum_tiles", "scan_sums", "scan_tiles", "fill_numbers"),
    "gpu_ops.kernels.unique": ("insert_ids", "mark_firsts", "number_ids"),
    "gpu_ops.kernels.sort": ("count_keys", "place_keys"),
    _COLUMNS_GRADIENTS: ("own_entries",),
    "gpu_ops.kernels.entries": (
        "rows_of_entries",
        "mark_starts",
        "address_entries",
        "number_rows",
        "check_pairs",
        "find_last_row",
        "count_entries",
        "order_weights",
    ),
    "ops.bags.gpu_kernels.partition": ("key_ids", "place_ids"),
    "ops.bags.gpu_kernels.prune": (
        "mark_entries",
        "put_entries",
        "fill_rows",
        "put_in_buckets",
        "fill_elements",
    ),
    "ops.bags.gpu_kernels.prune_dense": ("mark_dense", "put_dense", "put_row_flags"),
    "ops.columns.gpu_kernels.listing": ("mark_elements", "mark_rows"),
    "ops.columns.gpu_kernels.slots": ("place_elements", "place_rows", "split_rows"),
    "ops.columns.gpu_kernels.column_ids": (
        "insert_pairs",
        "mark_pairs",
        "count_pairs",
        "list_pairs",
        "invert_order",
        "number_places",
    ),
    _BAGS_GRADIENTS: ("scale_bags",),
    "ops.bags.gpu_kernels.max_norm": ("measure_rows", "unclip_rows"),
    "ops.bags.gpu_kernels.weights": ("total_bags", "through_bags", "weight_grads"),
}

#: Those of them that need more than 64 registers.
_REGISTERS = {"measure_rows": 96}

#: Those of them that have a block for each tile, of any size.
_OF_TILES = ("sum_tiles", "scan_sums", "scan_tiles", "place_keys")

KERNELS: dict[str, Kernel] = {
    **{f"combine_{stored}": _combine(stored, is_plain=True) for stored in FLOATS},
    **{f"combine_any_{stored}": _combine(stored, is_plain=False) for stored in FLOATS},
    **{f"scatter_{stored}": _scatter(stored) for stored in FLOATS},
    **{f"scatter_bags_{stored}": _scatter_bags(stored) for stored in FLOATS},
    "check_rows": Kernel(_making(_BAGS, lambda module: module.check_rows_kernel()), 64),
    **{name: _of(module, name) for module, names in _FUNCTIONS.items() for name in names},
}
