"""What the kernel that hashes values knows of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.ids.cpu_kernels.layout import IdsColumn
from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.threads.layout import Pool


class IdsState(State):
    """The state of a kernel; the keys of columns follow."""

    pool: Pool
    column_count: Int64
    columns: IdsColumn = record(IdsColumn, 0)


class IdsConstants(Layout):
    """What the builder of states needs to know: the indices of attrs."""

    num_columns: Int64
    dtypes: Int64
    hashes: Int64
    num_buckets: Int64
    keys: Int64
