"""What describes a column to compiled code: words at an address, and their places.

This module needs no Numba, so that a node's words can be written without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: What a column does, by word. Floats are doubles, flags 0 or 1; `BOUNDARIES` is the place of the
#: first of its `BOUNDARY_COUNT` boundaries among all. `REST` and `WHOLE` are the addresses of
#: kernels: the latter, if not 0, for pieces of `PIECE` elements, while more than that are left.
#: `LISTED_PLACE` is the column's row of row splits that many columns share, `TOP_OFFSET` where it
#: starts in a row of a gradient.
(
    FORM,
    COMBINER,
    MAX_NORM,
    PRUNE,
    FILL,
    DEFAULT_ID,
    WEIGHTED,
    PRUNE_WEIGHTS,
    DEFAULT_WEIGHT,
    NO_NAN,
    ROW_COUNT,
    USE_IGNORED,
    IGNORED,
    STRIDE,
    BUCKETS,
    BUCKET_DEFAULT,
    DIM,
    IDS_KIND,
    ROWS_KIND,
    KEYS_KIND,
    SORT_KEYS,
    BOUNDARIES,
    BOUNDARY_COUNT,
    REST,
    WHOLE,
    PIECE,
    LISTED_PLACE,
    TOP_OFFSET,
) = range(28)
COLUMN_WORDS = 28

#: Forms of ids, by place. Listed ones are a part of a list, with splits for it.
INDICES, ROW_IDS, ROW_SPLITS, DENSE, COPY, LISTED = range(6)

#: What a column is given, by word: the table, its rows and their number of elements and bytes; ids,
#: their number, and how many a row of dense ones has; where the entries belong, how many elements
#: each has there; weights; rows of the result; boundaries, as float32; a row of zeros, or 0; the
#: kind of numbers in the table; up to five tensors, to be released.
(
    TABLE,
    TABLE_ROWS,
    TABLE_DIM,
    ROW_BYTES,
    IDS,
    ID_COUNT,
    ID_COLUMNS,
    ROWS,
    ROW_STEP,
    WEIGHTS,
    BATCH,
    LIMITS,
    ZEROS,
    TABLE_KIND,
    TENSORS,
) = range(15)
SOURCE_WORDS = 15 + 5

#: Boundaries are looked at so many at a time.
LIMIT_BLOCK = 16


def laid_out(boundaries: Sequence[float]) -> list[float]:
    """A column's boundaries in memory: in whole blocks, then the largest ones of all blocks.

    Infinities fill the last block, and enough follow for a look at a block of largest ones from
    any of them on.
    """
    blocks = -(-len(boundaries) // LIMIT_BLOCK)
    limits = [*boundaries, *[math.inf] * (blocks * LIMIT_BLOCK - len(boundaries))]
    largest = limits[LIMIT_BLOCK - 1 :: LIMIT_BLOCK]
    return [*limits, *largest, *[math.inf] * (LIMIT_BLOCK + blocks % 2)] if limits else []
