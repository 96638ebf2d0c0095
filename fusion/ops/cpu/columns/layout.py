"""What the kernels for whole columns know of a node.

This module needs no Numba, so that a node's state can be written without it.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Int64, fields
from fusion.runtime.tensorflow.layout import State


class ColumnsState(State):
    """The state of a kernel for whole columns.

    A `ColumnAttrs` for each column follows, then boundaries as float32, then a row of zeros.
    """

    column_count: Int64
    item_bytes: Int64  # of an element of the tables
    dtype_code: Int64  # of the same
    pool: Address  # of threads, 0 for none
    boundaries_offset: Int64  # in fields of the state
    zeros_offset: Int64  # in fields of the state, 0 for none
    role: Int64  # see below
    lookup_count: Int64  # columns that are lookups
    weighted_count: Int64  # columns with weights
    columns: Fields = fields(0)


#: Roles: a whole lookup; what comes before and behind the gathers of one.
FULL, PRE, POST = range(3)
