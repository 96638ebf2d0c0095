"""What optimizers do to rows: the formulas of `fusion.cpu_ops.row_rules`, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.cpu_ops.row_rules import FORMULAS
from fusion.cpu_ops.rules import RULES
from fusion.gpu_ops.kernels.errors import report_error
from fusion.gpu_ops.language.device import cuda, jit, load_as, on_device, store_as
from fusion.gpu_ops.language.exact import exact, inexact
from fusion.gpu_ops.layout.call import BAD_RATE
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES

_FTRL = [*RULES].index("ftrl")


def _rule(stored: str, name: str) -> Any:
    """A device function (updates, three old rows, three new ones, numbers, offset in bytes).

    Of the rows those that the rule has count.
    """
    dtype = getattr(np, stored)

    @jit
    def take(addresses: Any, which: int, offset: int) -> Any:
        return exact(load_as(addresses[which] + offset, int64(0), dtype))

    @jit
    def put(addresses: Any, which: int, offset: int, value: Any) -> None:
        store_as(addresses[which] + offset, int64(0), inexact(value), dtype)

    @jit
    def number(numbers: int, which: int) -> Any:
        return load_as(numbers, int64(which), dtype)

    formula, slots = on_device(FORMULAS[name](take, put, number)), len(RULES[name].slots)

    @jit
    def update_one(updates: int, old: Any, new: Any, numbers: int, offset: int) -> None:
        formula((updates, old[0], new[0]), numbers, offset)

    @jit
    def update_two(updates: int, old: Any, new: Any, numbers: int, offset: int) -> None:
        formula((updates, old[0], old[1], new[0], new[1]), numbers, offset)

    @jit
    def update_three(updates: int, old: Any, new: Any, numbers: int, offset: int) -> None:
        formula((updates, old[0], old[1], old[2], new[0], new[1], new[2]), numbers, offset)

    return (update_one, update_two, update_three)[slots - 1]


def _either(index: int, update_one: Any, other: Any) -> Any:
    """A device function that does `update_one` if the rule is that number, else `other`."""

    @jit
    def update(rule: int, updates: int, old: Any, new: Any, numbers: int, offset: int) -> None:
        if rule == index:
            update_one(updates, old, new, numbers, offset)
        else:
            other(rule, updates, old, new, numbers, offset)

    return update


def _by_rule(stored: str) -> Any:
    """A device function (rule, ...) that does a rule; see `_rule`."""
    *others, last = (_rule(stored, name) for name in RULES)

    @jit
    def update(rule: int, updates: int, old: Any, new: Any, numbers: int, offset: int) -> None:
        last(updates, old, new, numbers, offset)

    for index, update_one in reversed([*enumerate(others)]):
        update = _either(index, update_one, update)
    return update


def update_kernel(stored: str) -> Any:
    """The kernel that updates rows of dtype `stored`, a thread for each element.

    Its arguments: the rule, by its index in `RULES`; the addresses of updates, of up to three old
    rows, of as many new ones, and of the rule's numbers; how many elements; the `ErrorRecord` for
    a rate that is not positive.
    """
    update, item, dtype = _by_rule(stored), DTYPES[stored].item_bytes, getattr(np, stored)

    def update_rows(
        rule: int,
        updates: int,
        old_0: int,
        old_1: int,
        old_2: int,
        new_0: int,
        new_1: int,
        new_2: int,
        numbers: int,
        elements: int,
        errors: int,
    ) -> None:
        k = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if k == 0 and rule == _FTRL and not load_as(numbers, int64(0), dtype) > 0:
            report_error(errors, BAD_RATE, int64(0), int64(0), int64(0))
        if k < elements:
            update(rule, updates, (old_0, old_1, old_2), (new_0, new_1, new_2), numbers, k * item)

    return update_rows
