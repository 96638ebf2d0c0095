"""What the kernel that gathers rows of many variables knows of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.tables.cpu.layout import AccessedDtype
from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.tensorflow.dtypes import COMPUTED
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import UpdateAccess
from fusion.runtime.threads.layout import Pool


class GatherColumn(Layout):
    """A column of a node."""

    row_bytes: Int64
    keys_dtype: Int64  # its code


class GatherState(State):
    """The state of a kernel; a `GatherColumn` for each column follows."""

    column_count: Int64
    item_bytes: Int64  # of an element
    pool: Pool  # of threads, 0 for none
    access: UpdateAccess = record(UpdateAccess)
    columns: GatherColumn = record(GatherColumn, 0)


class GatherConstants(Layout):
    """What the builder of states needs to know: the indices of attrs, and dtypes."""

    T: Int64
    num_columns: Int64
    dims: Int64
    Tkeys: Int64
    dtypes: AccessedDtype = record(AccessedDtype, len(COMPUTED))
