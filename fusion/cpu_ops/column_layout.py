"""What describes a column to compiled code.

This module needs no Numba, so that a node's state can be written without it.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, LayoutOf, fields
from fusion.schema.columns import Column


class ColumnAttrs(LayoutOf, record=Column):
    """A column, and what else its kernels need to know.

    Of the column, strings are indices among those allowed, floats are doubles, flags 0 or 1. The
    addresses and what leads to memory are of compiled code.
    """

    id_format: Int64  # an index into the formats below
    is_each: Flag  # whether ids of any shape are a matrix of one column
    has_lengths: Flag  # whether rows have a number of entries, from the left
    is_rounded_once: Flag  # whether mean divides sums and by numbers that are not rounded before
    row_words: Int64  # float32 words of a packed row, 0 of plain rows
    ids_dtype: Int64  # codes of dtypes, see below
    rows_dtype: Int64
    keys_dtype: Int64
    sort_key: Flag
    first_boundary: Int64  # its index among the boundaries of all columns
    boundary_count: Int64
    tail_kernel: Address  # of the last elements of a row, all where there is no other
    tile_kernel: Address  # of `tile_width` elements, while more than that are left; 0 for none
    tile_width: Int64
    lookup_index: Int64  # the column's row of the row splits that columns share
    output: Int64  # the matrix that the column is in, among those of a call
    top_grad_offset: Int64  # where it starts in a row of the gradient; < 0: behind the one before


#: Formats of ids. Listed ones are a part of a list, with splits for it.
INDICES, ROW_IDS, ROW_SPLITS, DENSE, COPY, LISTED = range(6)


#: Orders in which rows are added, as `fusion.schema.columns.SUM_ORDERS` has them.
SEGMENT, AXIS, SEQUENCE, DENSE_SEGMENT = range(4)


#: What is added in an order but the first: rows, rows times weights, rows less a penalty.
PLAIN, TIMES, LESS = range(3)


class ColumnInputs(Layout):
    """The tensors of a column of a call."""

    table: Address
    table_rows: Int64
    table_dim: Int64
    row_bytes: Int64
    ids: Address
    id_count: Int64
    id_columns: Int64  # ids of a row of a dense matrix
    id_gap: Int64  # what lies between two ids, in elements, if others do
    entry_rows: Address  # or row splits
    entry_row_stride: Int64  # from one to the next, in elements
    weights: Address
    batch_size: Int64  # rows of the result
    boundaries: Address  # float32, see `LIMIT_BLOCK`
    zeros: Address  # a row of zeros, or 0
    table_dtype: Int64  # its code
    tensors: Fields = fields(5)  # TF_Tensor*, to be released; 0 for none
    weight_step: Int64  # from the weights of a row to those of the next, if they are dense


#: Boundaries are looked at so many at a time. In memory they are in whole blocks, the last of which
#: infinities fill; then the largest of each block, and enough infinities for a look at these.
LIMIT_BLOCK = 16
