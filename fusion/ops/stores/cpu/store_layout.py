"""What the kernel that gathers rows from a table store knows of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.stores.cpu_kernels.layout import StoreNames
from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.tensorflow.layout import State


class StoreColumn(Layout):
    """A table of a node."""

    name: Int64  # bytes from the state on
    name_length: Int64
    name_hash: Int64
    dim: Int64


class StoreGatherState(State):
    """The state of a kernel; a `StoreColumn` for each table follows, and then texts."""

    names: StoreNames  # of this process; 0 in a library of ops, which has no Python
    store: Int64  # the name of the store: bytes from the state on, a C string
    store_length: Int64
    column_count: Int64
    columns: StoreColumn = record(StoreColumn, 0)


class StoreConstants(Layout):
    """What the builder of states needs to know: the indices of attrs, and the names of stores."""

    store: Int64
    num_tables: Int64
    tables: Int64
    dims: Int64
    names: StoreNames
