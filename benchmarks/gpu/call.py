"""A call of the kernels for whole columns, as words: for those that launch them without TensorFlow.

Needs neither Numba nor TensorFlow. Addresses are those of device memory, 64-bit integers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.layout import combine
from fusion.gpu_ops.layout.arrays import array_index
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.tensorflow.dtypes import DTYPES, INT64


@dataclass(frozen=True)
class Column:
    """What a column does and is given; attrs are those of FusedEmbeddingLookup, by word.

    Attributes:
        form: how ids are given, as in `column_layout`.
        table, table_rows, dim: the table's address and shape.
        ids, id_count, id_columns, ids_kind: the ids' address, their number, how many a dense row
            has, and their kind (`dtypes.INT32` ...).
        rows, row_step, rows_kind: rows or splits of the entries, elements from one to the next.
        weights: address of weights of the table's dtype, 0 for none.
        boundaries: of bucketized values, ascending.
        attrs: further words of a column, e.g. `{PRUNE: 1}`; floats are doubles.
    """

    form: int
    table: int
    table_rows: int
    dim: int
    ids: int
    id_count: int
    id_columns: int = 1
    ids_kind: int = INT64
    rows: int = 0
    row_step: int = 1
    rows_kind: int = INT64
    weights: int = 0
    boundaries: Sequence[float] = ()
    attrs: Mapping[int, int | float] = field(default_factory=dict)

    def column(self) -> list[int]:
        """The words of what the column does."""
        found = [0] * ColumnAttrs.SIZE
        defaults = {
            ColumnAttrs.max_norm: -1.0,
            ColumnAttrs.default_weight: 1.0,
            ColumnAttrs.default_id: -1,
        }
        for place, value in {**defaults, ColumnAttrs.divide_no_nan: 1, **self.attrs}.items():
            found[place] = _word(value)
        found[ColumnAttrs.id_format], found[ColumnAttrs.dim] = self.form, self.dim
        found[ColumnAttrs.ids_dtype], found[ColumnAttrs.rows_dtype] = self.ids_kind, self.rows_kind
        found[ColumnAttrs.use_sparse_weights] = int(self.weights != 0)
        found[ColumnAttrs.boundary_count] = len(self.boundaries)
        return found

    def source(self, stored: str, batch: int, limits: int) -> list[int]:
        """The words of what the column is given, for tables of dtype `stored`."""
        found = [0] * ColumnInputs.SIZE
        found[ColumnInputs.table], found[ColumnInputs.table_rows] = self.table, self.table_rows
        found[ColumnInputs.table_dim] = self.dim
        found[ColumnInputs.table_dtype] = DTYPES[stored].code
        found[ColumnInputs.row_bytes] = self.dim * DTYPES[stored].item_bytes
        found[ColumnInputs.ids], found[ColumnInputs.id_count] = self.ids, self.id_count
        found[ColumnInputs.id_columns], found[ColumnInputs.entry_rows] = self.id_columns, self.rows
        found[ColumnInputs.entry_row_stride] = self.row_step
        found[ColumnInputs.weights] = self.weights
        found[ColumnInputs.batch_size], found[ColumnInputs.boundaries] = batch, limits
        return found


def _word(value: int | float) -> int:
    if isinstance(value, float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    return int(value)


@dataclass(frozen=True)
class Call:
    """A call's words, one piece of memory for all that a kernel reads of it.

    Attributes:
        words: int64 [n], to be copied to `base`, where the call is then.
        width: elements of a row of the result.
        base: an address.
    """

    words: np.ndarray[Any, np.dtype[np.int64]]
    width: int
    base: int

    def tiles(self, word: int) -> int:
        """The blocks of a launch, by the word of their tiles."""
        return int(combine.tiles_of(self.words, self.base, word))

    @property
    def is_plain(self) -> bool:
        """Whether all columns are plain."""
        return bool(self.words[CombineCall.is_all_plain])

    @property
    def errors(self) -> int:
        """The index of the `ErrorRecord` in the call."""
        return int(array_index(self.words, self.base, CombineCall.errors))


def prepare(
    stored: str, batch: int, columns: Sequence[Column], out: int, address: Callable[[int], int]
) -> Call:
    """The call that combines columns side by side.

    Args:
        stored: dtype of the tables.
        batch: rows of the result.
        out: the result's address, a multiple of 16.
        address: (bytes) -> where so many bytes will be.
    """
    limits = [limit for column in columns for limit in column.boundaries]
    size = combine.words_of_call(len(columns), len(limits))
    content, base = np.zeros(size, np.int64), address(8 * size)
    limits_at = combine.open_call(content, base, len(columns))
    content[limits_at:].view(np.float32)[: len(limits)] = limits
    first = base + 8 * limits_at
    own, given = (array_index(content, base, w) for w in (CombineCall.columns, CombineCall.inputs))
    for column in columns:
        content[own : own + ColumnAttrs.SIZE] = column.column()
        content[given : given + ColumnInputs.SIZE] = column.source(stored, batch, first)
        own, given = own + ColumnAttrs.SIZE, given + ColumnInputs.SIZE
        first += 4 * len(column.boundaries)
    item, count = DTYPES[stored].item_bytes, len(columns)
    combine.put_output(content, base, 0, count, item, out)
    combine.lay_out(content, base, batch, item, 0)
    return Call(content, int(combine.width_of(content, base, 0, count)), base)
