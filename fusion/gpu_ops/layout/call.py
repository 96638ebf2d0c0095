"""The arguments of kernels for whole columns, in device memory.

This module needs no Numba, so that a call can be prepared without it.
"""

from __future__ import annotations

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.layout import Address, Flag, Int64, Layout, Words


class CombineCall(Layout):
    """A call of the kernels that combine columns.

    What is said to be of columns is an array, int64 [columns] if nothing else is said.
    """

    column_count: Int64
    batch_size: Int64
    columns: ColumnAttrs  # [columns]
    inputs: ColumnInputs  # [columns]
    tiles: Address  # the first tile of bags of each column, and the number of all, [columns + 1]
    check_tiles: Address  # the same of entries whose rows are checked, [columns + 1]
    outs: Words  # the first element of the result of columns
    out_bytes: Words  # from one row of that to the next, of columns
    lanes: Words  # elements that a thread computes at once, of columns
    groups: Words  # threads of a row, of columns
    shares: Words  # groups that share a bag, of columns
    plain: Words  # whether a column is plain, of columns
    is_all_plain: Flag
    unsorted: Words  # flags of columns whose entries are not in the order of rows
    errors: ErrorRecord


#: Error codes: an id that is not in the table; the id of empty rows is not; rows of entries that
#: are not in the batch, or not in order; row splits that make no sense; a row of entries, which
#: must be in order, that is less than the one before; an index of gathered rows that two distinct
#: ids have; an id that is too large for the dtype of keys.
BAD_ID, BAD_DEFAULT, BAD_ROW, BAD_SPLIT, UNSORTED_ROW, REPEATED, BAD_KEY = range(1, 8)
#: Instead of an error code while the record is still being written: the host may look.
WRITING = -1

#: Threads of a block, and of a warp.
THREADS = 128
WARP = 32


def lanes_of(item: int, dim: int, addresses: int) -> int:
    """How many elements of `item` bytes are read at once: 16 bytes, if rows are whole ones.

    Args:
      dim: elements of a row.
      addresses: those of rows that are read or written, by bitwise or.
    """
    lanes = 16 // item
    while lanes > 1 and (dim % lanes > 0 or addresses % (lanes * item) > 0):
        lanes //= 2
    return lanes


def group_of(dim: int, lanes: int) -> int:
    """The threads that read a row of `dim` elements: a power of 2, at most a warp."""
    group = 1
    while group < WARP and group * lanes < dim:
        group *= 2
    return group


class GradientCall(Layout):
    """A call of the kernels of gradients.

    What is said to be of columns is an array, int64 [columns] if nothing else is said.
    """

    column_count: Int64
    batch_size: Int64
    entry_count: Int64
    unique_idxs: Address  # the distinct id of each entry among its column's, int32
    row_splits: Address  # int32 [columns, batch_size + 1]
    entry_weights: Address
    top_grads: Words  # the gradient of the first row of the result, of columns
    top_grad_bytes: Words  # from one row of that to the next, of columns
    key_offsets: Words  # distinct ids of all columns before, and of all, [columns + 1]
    dims: Words  # of columns
    combiners: Words  # of columns
    weighted: Words  # whether a column has weights, of columns
    lanes: Words  # elements that a thread computes at once, of columns
    groups: Words  # threads of a row, of columns
    tiles: Address  # the first tile of each column, and the number of all, [columns + 1]
    outs: Words  # the gradients of columns
    keys: Address  # the distinct id of each entry among all columns', int32
    owners: Address  # the row of the batch of each entry, int32
    starts: Words  # where the entries of each distinct id start, int64
    dtype_code: Int64  # of weights and gradients
    scales: Address  # of columns and rows, see `bag_scales.put_scale`; not read if all are sums
    errors: ErrorRecord


class PreLookupCall(Layout):
    """A call of the kernels before gathers.

    A column has an entry for each of its elements, and if it fills empty rows one for each row.
    """

    column_count: Int64
    batch_size: Int64
    columns: ColumnAttrs  # [columns]
    inputs: ColumnInputs  # [columns]
    element_offsets: Words  # the elements of all columns before, int64 [columns + 1]
    entry_offsets: Words  # where each column's entries start, int64 [columns + 1]
    #: What kernels find: an `ErrorRecord`, then of columns, int64: flags of those whose elements
    #: are not in the order of rows; the number of distinct ids; of those to be sorted the
    #: complement of the largest id; of those whose last row ends them the rows up to that of the
    #: last element.
    results: Address
    #: Whether only the results say how many rows there are. If so, no column fills rows, and the
    #: batch has one row with all elements, until it is known.
    is_batch_open: Flag


def result_words(columns: int) -> int:
    """The fields of the results of a call before gathers; all are zeros before."""
    return ErrorRecord.SIZE + 4 * columns
