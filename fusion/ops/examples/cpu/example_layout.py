"""What the kernel that parses Examples knows of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import Names
from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.threads.layout import Pool

#: The input behind Examples and their names.
FIRST_DEFAULT = 2


class ParseState(State):
    """The state of a kernel; features, dimensions, slots and names follow."""

    pool: Pool
    sparse_count: Int64
    dense_count: Int64
    default_count: Int64
    ragged_count: Int64
    place_count: Int64
    names: Names = record(Names)


class ParseConstants(Layout):
    """What the builder of states needs to know: the indices of attrs."""

    sparse_keys: Int64
    dense_keys: Int64
    ragged_keys: Int64
    sparse_types: Int64
    dense_types: Int64
    default_types: Int64
    ragged_types: Int64
    split_types: Int64
    num_sparse: Int64
    dense_ranks: Int64
    dense_dims: Int64
    required: Int64
