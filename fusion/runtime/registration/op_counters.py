"""What the calls of each op add up to in this process."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from fusion.runtime.registration import op_kernels
from fusion.runtime.registration.library import chosen
from fusion.runtime.tensorflow.layout import Counters, OpTable


class OpCounts(NamedTuple):
    """See `Counters`; the fields are read one after the other while calls go on."""

    calls: int = 0
    rows: int = 0
    helpers: int = 0
    nanoseconds: int = 0


def op_counts() -> dict[str, OpCounts]:
    """The counts of all ops with kernels here, by name."""
    counts: dict[str, OpCounts] = {}
    for name, table in (*op_kernels.op_tables(), *chosen.op_tables().items()):
        before = counts.get(name, OpCounts())
        counts[name] = OpCounts(*map(sum, zip(before, _read(table), strict=True)))
    return dict(sorted(counts.items()))


def _read(table: int) -> OpCounts:
    address = (ctypes.c_int64 * OpTable.SIZE).from_address(table)[OpTable.counters]
    words = (ctypes.c_int64 * Counters.SIZE).from_address(address)
    fields = Counters.calls, Counters.rows, Counters.helpers, Counters.nanoseconds
    return OpCounts(*(words[field] for field in fields))
