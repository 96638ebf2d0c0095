"""The indices of the row kernels of ops that combine rows: of each dtype, tile and variant.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.cpu_ops.column_layout import SEGMENT
from fusion.runtime.tensorflow.dtypes import BFLOAT16, FLOAT32
from fusion.schema.row_formats import PACKED_FORMATS

#: The codes of dtypes of tables.
FIRST_FLOAT, DTYPE_COUNT = FLOAT32, BFLOAT16 - FLOAT32 + 1

#: The codes of tables: those of dtypes, then of float32 ones of packed rows, by their formats.
TABLE_COUNT = DTYPE_COUNT + len(PACKED_FORMATS)

#: Tile 0 is that for any number of elements; the others are those of `row_tiles.tiles`, in order.
MAX_TILES = 32

#: With weights or not, limited norms or not; then of each other order of sums, see `ordered`.
GATHER_VARIANTS, FIRST_ORDERED = 32, 4

SCATTER_VARIANTS = 2


def table_code(dtype: int, row_format: int) -> int:
    """The code of tables of a dtype, and of the index of a row format; 0 is that of plain rows."""
    return dtype if row_format == 0 else FIRST_FLOAT + DTYPE_COUNT + row_format - 1


def shape_index(table: int, tile: int) -> int:
    """The index of a tile of tables, by their code."""
    return (table - FIRST_FLOAT) * MAX_TILES + tile


def ordered(order: int, terms: int, takes_max: int) -> int:
    """The variant of a gather in another order of sums than the first."""
    return FIRST_ORDERED + ((order - SEGMENT - 1) * 3 + terms) * 2 + takes_max
