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


class FeatureGroup(Layout):
    """Features that an Example has in one map."""

    first_output: Int64
    is_of_lists: Int64  # whether they are feature lists of SequenceExamples
    sparse_count: Int64
    dense_count: Int64
    output_count: Int64  # of dense features, if several may have one
    default_count: Int64
    ragged_count: Int64
    place_count: Int64
    names: Names = record(Names)  # dense features first, then sparse ones, then ragged ones


class ExampleState(State):
    """The state of a kernel of any parser."""

    pool: Pool


class ParseState(ExampleState):
    """The state of a kernel; features, dimensions, slots and names follow."""

    group: FeatureGroup = record(FeatureGroup)


class GroupConstants(Layout):
    """What the builder of states needs to know of a group: the indices of attrs."""

    sparse_keys: Int64
    dense_keys: Int64
    ragged_keys: Int64
    sparse_types: Int64
    dense_types: Int64
    ragged_types: Int64
    split_types: Int64
    num_sparse: Int64
    dense_ranks: Int64
    dense_dims: Int64
    required: Int64
    default_types: Int64  # -1: there are no defaults
    num_dense: Int64  # -1: there is no such attr
    sparse_buckets: Int64  # -1: nothing is hashed
    dense_buckets: Int64
    ragged_buckets: Int64
    dense_outputs: Int64  # -1: each has its own
    dense_columns: Int64
    value_types: Int64
