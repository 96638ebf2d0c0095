"""What the kernels for whole columns know of a node, and what their states are built from.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.cpu.columns.kernel_indices import DTYPE_COUNT, MOST_TILES
from fusion.ops.cpu.tables.layout import AccessedDtype
from fusion.runtime.layout import Address, Fields, Flag, Float64, Int64, Layout, fields
from fusion.runtime.tensorflow.dtypes import COMPUTED
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import UpdateAccess


class ColumnsState(State):
    """The state of a kernel for whole columns.

    A `ColumnAttrs` for each column follows, then boundaries as float32, then a row of zeros, then
    `KeyedColumns`.
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
    keyed_offset: Int64  # of `KeyedColumns`, in fields of the state; 0 for none
    output_count: Int64  # matrices that columns are in
    columns: Fields = fields(0)


class KeyedColumns(Layout):
    """The columns whose tables are embedding variables; a `KeyedColumn` for each follows."""

    table_access: Fields = fields(UpdateAccess.SIZE)
    index_access: Fields = fields(UpdateAccess.SIZE)
    count: Int64
    columns: Fields = fields(0)


class KeyedColumn(Layout):
    """One of these."""

    index: Int64  # among all columns
    is_training: Flag


#: Roles: a whole lookup; what comes before and behind the gathers of one, and the gradient of that.
FULL, PRE, POST, GRAD = range(4)


class GivenColumn(Layout):
    """A column as the node's attrs have it; strings are indices among those allowed."""

    form: Int64
    combiner: Int64
    max_norm: Float64
    prune: Flag
    fill_empty_row: Flag
    default_id: Int64
    use_sparse_weights: Flag
    prune_sparse_weights: Flag
    default_weight: Float64
    divide_no_nan: Flag
    row_count: Int64
    use_ignored_id: Flag
    ignored_id: Int64
    column_stride: Int64
    num_buckets: Int64
    bucket_default: Int64
    dim: Int64
    wrap_negative: Flag
    sum_order: Int64
    mask_product: Flag
    mask_penalty: Float64
    divisor_epsilon: Float64
    epsilon_input: Flag
    row_format: Int64
    Tids: Int64  # codes of dtypes, -1 for those without
    Trows: Int64
    Tkeys: Int64
    Tpacked: Int64
    sort_key: Flag
    copied: Flag
    offset: Int64


class Source(Layout):
    """Where a field of `GivenColumn` comes from."""

    attr: Int64  # its index, -1 for none
    is_list: Flag  # with an element for each column
    is_dtype: Flag
    default: Int64


class Tile(Layout):
    """A tile that there are kernels for, see `row_tiles`."""

    lanes: Int64
    vectors: Int64


class ColumnsConstants(Layout):
    """What the builder of states for whole columns needs to know."""

    role: Int64
    dtype_attr: Int64  # the indices of attrs, -1 for none
    count_attr: Int64
    boundaries_attr: Int64
    boundary_counts_attr: Int64
    num_others_attr: Int64
    output_columns_attr: Int64
    sources: Fields = fields(GivenColumn.SIZE * Source.SIZE)
    tile_counts: Fields = fields(DTYPE_COUNT)
    tiles: Fields = fields(DTYPE_COUNT * MOST_TILES * Tile.SIZE)


class KeyedConstants(ColumnsConstants):
    """The same of ops with embedding variables."""

    keyed: Int64  # the indices of attrs
    keyed_count: Int64
    is_training: Int64
    dtypes: Fields = fields(len(COMPUTED) * AccessedDtype.SIZE)
