"""All kernels for GPUs, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Dtypes of tables.
_STORED = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        make: () -> the Python function that Numba compiles.
        arguments: how many 64-bit integers it takes.
        registers: the most that a thread of it may need.
    """

    make: Callable[[], Any]
    arguments: int
    registers: int


def _combine(stored: str, *, is_plain: bool) -> Kernel:
    def make() -> Any:
        from fusion.gpu_ops.combine import combine_kernel

        return combine_kernel(stored, is_plain)

    # Of the plain one five blocks and more are on a multiprocessor: rows are on their way for all.
    return Kernel(make, 2, 96 if is_plain else 168)


def _check_rows() -> Any:
    from fusion.gpu_ops.combine import check_rows_kernel

    return check_rows_kernel()


KERNELS: dict[str, Kernel] = {
    **{f"combine_{stored}": _combine(stored, is_plain=True) for stored in _STORED},
    **{f"combine_any_{stored}": _combine(stored, is_plain=False) for stored in _STORED},
    "check_rows": Kernel(_check_rows, 2, 64),
}
