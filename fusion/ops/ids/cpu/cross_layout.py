"""What the kernel that crosses features knows of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.ids.cpu_kernels.cross_layout import Cross
from fusion.runtime.layout import Int64, Layout, record
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.threads.layout import Pool


class CrossState(State):
    """The state of a kernel; features and keys follow."""

    pool: Pool
    cross_count: Int64
    feature_count: Int64
    sparse_count: Int64
    crosses: Cross = record(Cross, 0)


class CrossConstants(Layout):
    """What the builder of states needs to know: the indices of attrs."""

    num_crosses: Int64
    num_sparse: Int64
    Tvalues: Int64
    feature_counts: Int64
    feature_forms: Int64
    ignored: Int64
    hashes: Int64
    num_buckets: Int64
    keys: Int64
    forms: Int64
