"""What the kernel that hashes values knows of columns, and of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Int64, Layout, Words
from fusion.runtime.threads.layout import Job

#: Hashes, by their place in `schema.attributes.HASHES`.
FAST, LEGACY, STRONG = range(3)
#: What is hashed: strings, and the decimal texts of integers.
TEXTS, INT32, INT64 = range(3)

#: A task hashes so many values of a column.
TASK_VALUES = 1024


class IdsColumn(Layout):
    """How the values of a column are hashed."""

    source: Int64  # what they are
    hash: Int64
    buckets: Int64
    reciprocal: Int64  # (2**64 - 1) // buckets
    key: Words  # two words


class IdsCall(Layout):
    """The tensors of a column in a call."""

    values: Address
    ids: Words
    count: Int64


class IdsJob(Job):
    """A call that hashes values."""

    columns: IdsColumn
    calls: IdsCall
    column_count: Int64
    firsts: Words  # of each column the number of its first task, and that of all tasks
