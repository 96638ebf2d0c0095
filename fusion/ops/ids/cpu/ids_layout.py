"""What the kernels that make ids know of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.ids.cpu_kernels.layout import IdsColumn
from fusion.ops.ids.cpu_kernels.split_layout import Split
from fusion.runtime.layout import Flag, Int64, Layout, Words, record
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.threads.layout import Pool


class IdsState(State):
    """The state of a kernel; the keys of columns, `splits` and delimiters follow."""

    pool: Pool
    column_count: Int64
    has_index: Flag
    splits: Split  # how texts are split; 0: they are not
    columns: IdsColumn = record(IdsColumn, 0)


class IdsConstants(Layout):
    """What the builder of states needs to know: the indices of attrs, -1 for none."""

    num_columns: Int64
    dtypes: Int64
    hashes: Int64
    num_buckets: Int64
    keys: Int64
    num_indices: Int64
    vocabularies: Int64
    replaced: Int64
    starts: Int64
    delimiters: Int64
    parts: Int64
    forms: Int64


class IndexState(State):
    """The state of a kernel that makes an index; arrays follow."""

    count: Int64  # vocabularies
    mask_count: Int64
    sources: Words  # of each vocabulary what its keys are
    masks: Words  # of each the number of its mask, or -1


class IndexConstants(Layout):
    """As `IdsConstants`."""

    num_vocabularies: Int64
    dtypes: Int64
    masked: Int64
    mask_dtypes: Int64
