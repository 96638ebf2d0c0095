"""What a kernel for whole columns is told: words in device memory, and their places.

This module needs no Numba, so that a call can be prepared without it.
"""

from __future__ import annotations

#: A call, by word: the number of columns, and of rows of the batch; where columns and sources are
#: described (`fusion.cpu_ops.column_words`); the first tile of each column and the number of all,
#: int64 [columns + 1], of bags and of entries whose rows are looked at; where each column starts in
#: a row of the result, in elements, int64; the elements that a thread computes at once, the threads
#: of a row, how many groups of so many share a bag, and whether the column is plain, int64 each;
#: whether all are; the address of the result, and the bytes of a row of it; flags of columns whose
#: entries are not in the order of rows, int64; where trouble is told.
(
    COUNT,
    BATCH,
    COLUMNS,
    SOURCES,
    TILES,
    CHECK_TILES,
    OFFSETS,
    LANES,
    GROUPS,
    SHARES,
    PLAIN,
    ALL_PLAIN,
    OUT,
    OUT_BYTES,
    UNSORTED,
    TROUBLE,
) = range(16)
CALL_WORDS = 16

#: Trouble, by word: its kind, 0 for none; the column, the element and its id or row.
KIND, COLUMN, ELEMENT, NUMBER = range(4)
TROUBLE_WORDS = 4
#: Kinds: an id that is not in the table; the id of empty rows is not; rows of entries that are not
#: in the batch, or not in order; row splits that make no sense; a row of entries, which must be in
#: order, that is less than the one before; a place of gathered rows that two distinct ids have; an
#: id that is too large for the dtype of keys; a rate that is not positive.
BAD_ID, BAD_DEFAULT, BAD_ROW, BAD_SPLIT, UNSORTED_ROW, REPEATED, BAD_KEY, BAD_RATE = range(1, 9)
#: In the place of a kind while what is told is still being written: the host may look meanwhile.
WRITING = -1

#: Threads of a block, and of a warp.
THREADS = 128
WARP = 32


def lanes_of(item: int, dim: int, offset: int, width: int) -> int:
    """How many elements of `item` bytes are read at once: 16 bytes, if they divide all sizes.

    Args:
      dim: elements of a column.
      offset, width: where it starts in a row of the result, and the elements of that.
    """
    lanes = 16 // item
    while lanes > 1 and (dim % lanes + offset % lanes + width % lanes) > 0:
        lanes //= 2
    return lanes


def group_of(dim: int, lanes: int) -> int:
    """The threads that read a row of `dim` elements: a power of 2, at most a warp."""
    group = 1
    while group < WARP and group * lanes < dim:
        group *= 2
    return group


#: A call of the kernels of gradients, by word: the number of columns, of rows of the batch, and of
#: entries; the distinct id of each entry among its column's, int32; row splits, int32 [columns,
#: batch + 1]; weights of the entries; the gradient of the result, and the bytes of a row of it; by
#: column, int64: the distinct ids of all columns before, and those of all; where it starts in a row
#: of the result, in elements, and how many there are; the combiner; whether it has weights; the
#: elements that a thread computes at once; the threads of a row; the first tile, and the number of
#: all; where its gradients go; then, of the entries, int32: their distinct id among all columns'
#: and their row of the batch; where those of each distinct id start, int64; the kind of weights and
#: gradients; by column and row, what `bag_scales.put_scale` writes, not read if all columns are
#: added up; where trouble is told.
(
    GRAD_COUNT,
    GRAD_BATCH,
    ENTRY_COUNT,
    PLACES,
    SPLITS,
    ENTRY_WEIGHTS,
    TOP,
    TOP_BYTES,
    BASES,
    GRAD_OFFSETS,
    DIMS,
    COMBINERS,
    WEIGHTED,
    GRAD_LANES,
    GRAD_GROUPS,
    GRAD_TILES,
    GRAD_OUTS,
    KEYS,
    OWNERS,
    STARTS,
    GRAD_KIND,
    SCALES,
    GRAD_TROUBLE,
) = range(23)
GRAD_WORDS = 23

#: A call of the kernels before gathers, by word: the number of columns, and of rows of the batch;
#: where columns and sources are described; by column, int64 [columns + 1]: the elements of all
#: columns before, and where its entries start: a column has a place for each of its elements, and
#: with `FILL` one for each row; what is told of the call, by word: trouble, flags of columns whose
#: elements are not in the order of rows, the distinct ids of each column, of those that are to be
#: sorted the complement of the largest one, and of those with `ROW_COUNT` the rows up to that of
#: the last element; whether only that tells how many rows there are. If so, no column fills rows,
#: and the batch has one row with all elements, until it is told.
(
    PRE_COUNT,
    PRE_BATCH,
    PRE_COLUMNS,
    PRE_SOURCES,
    PRE_ELEMENTS,
    PRE_FIRSTS,
    PRE_TOLD,
    PRE_IS_OPEN,
) = range(8)
PRE_WORDS = 8


def told_words(columns: int) -> int:
    """How many words are told of a call before gathers; all are zeros before."""
    return TROUBLE_WORDS + 4 * columns
