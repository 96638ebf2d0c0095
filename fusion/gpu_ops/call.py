"""A call of the kernels for whole columns, as words: for those that launch them without TensorFlow.

Needs neither Numba nor TensorFlow. Addresses are those of device memory, 64-bit integers.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusion.cpu_ops import column_words as words
from fusion.gpu_ops import call_words as call_of

_KINDS = ("int32", "int64", "float32", "float64", "float16", "bfloat16")
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Column:
    """What a column does and is given; attrs are those of FusedEmbeddingLookup, by word.

    Attributes:
        form: how ids are given, as in `column_words`.
        table, table_rows, dim: the table's address and shape.
        ids, id_count, id_columns, ids_kind: the ids' address, their number, how many a dense row
            has, and their kind (`column_words.INT32` ...).
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
    ids_kind: int = words.INT64
    rows: int = 0
    row_step: int = 1
    rows_kind: int = words.INT64
    weights: int = 0
    boundaries: Sequence[float] = ()
    attrs: Mapping[int, int | float] = field(default_factory=dict)

    def column(self) -> list[int]:
        """The words of what the column does."""
        found = [0] * words.COLUMN_WORDS
        defaults = {words.MAX_NORM: -1.0, words.DEFAULT_WEIGHT: 1.0, words.DEFAULT_ID: -1}
        for place, value in {**defaults, words.NO_NAN: 1, **self.attrs}.items():
            found[place] = _word(value)
        found[words.FORM], found[words.DIM] = self.form, self.dim
        found[words.IDS_KIND], found[words.ROWS_KIND] = self.ids_kind, self.rows_kind
        found[words.WEIGHTED] = int(self.weights != 0)
        found[words.BOUNDARY_COUNT] = len(self.boundaries)
        return found

    @property
    def is_plain(self) -> bool:
        """Whether elements are ids as they are, which count if they are in the table.

        Without weights and max_norm.
        """
        attrs = self.attrs
        if self.weights or attrs.get(words.MAX_NORM, -1.0) >= 0 or self.boundaries:
            return False
        if attrs.get(words.BUCKETS) or (attrs.get(words.STRIDE) and self.id_columns != 1):
            return False
        ignored = attrs.get(words.IGNORED, -1)
        return not (attrs.get(words.USE_IGNORED) and 0 <= ignored < self.table_rows)

    def source(self, stored: str, batch: int, limits: int) -> list[int]:
        """The words of what the column is given, for tables of dtype `stored`."""
        found = [0] * words.SOURCE_WORDS
        found[words.TABLE], found[words.TABLE_ROWS] = self.table, self.table_rows
        found[words.TABLE_DIM], found[words.TABLE_KIND] = self.dim, _KINDS.index(stored)
        found[words.ROW_BYTES] = self.dim * _ITEM_BYTES[stored]
        found[words.IDS], found[words.ID_COUNT] = self.ids, self.id_count
        found[words.ID_COLUMNS], found[words.ROWS] = self.id_columns, self.rows
        found[words.ROW_STEP], found[words.WEIGHTS] = self.row_step, self.weights
        found[words.BATCH], found[words.LIMITS] = batch, limits
        return found


def _word(value: int | float) -> int:
    if isinstance(value, float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    return int(value)


@dataclass(frozen=True)
class Call:
    """A call's words, one piece of memory for all that a kernel reads of it.

    Attributes:
        words: int64 [n], to be copied to `address`, where the call is then.
        plain_tiles, other_tiles: blocks of the combining kernels, and where their tiles are among
            `words`.
        width: elements of a row of the result.
        trouble: the place of the words that tell of trouble, among `words`.
    """

    words: np.ndarray[Any, np.dtype[np.int64]]
    plain_tiles: tuple[int, int]
    other_tiles: tuple[int, int]
    width: int
    trouble: int


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
    item, count = _ITEM_BYTES[stored], len(columns)
    offsets = [0, *itertools.accumulate(column.dim for column in columns)]
    width = offsets[-1]
    lanes = [
        call_of.lanes_of(item, column.dim, offset, width)
        for column, offset in zip(columns, offsets[:-1], strict=True)
    ]
    groups = [call_of.group_of(c.dim, n) for c, n in zip(columns, lanes, strict=True)]
    needed = [-(-batch // (call_of.THREADS // group)) for group in groups]
    plain, other = (
        [0, *itertools.accumulate(tiles)]
        for tiles in (
            [n * c.is_plain for c, n in zip(columns, needed, strict=True)],
            [n * (not c.is_plain) for c, n in zip(columns, needed, strict=True)],
        )
    )
    limits = np.array([limit for c in columns for limit in c.boundaries], np.float32)
    parts = {
        call_of.TROUBLE: [0] * call_of.TROUBLE_WORDS,
        call_of.UNSORTED: [0] * count,
        call_of.PLAIN_TILES: plain,
        call_of.OTHER_TILES: other,
        call_of.OFFSETS: offsets[:-1],
        call_of.LANES: lanes,
        call_of.GROUPS: groups,
        call_of.COLUMNS: [word for column in columns for word in column.column()],
    }
    sizes = [call_of.CALL_WORDS, *map(len, parts.values()), count * words.SOURCE_WORDS]
    starts = [0, *itertools.accumulate(sizes)]
    size = starts[-1] + (len(limits) + 1) // 2
    base = address(8 * size)
    head = [0] * call_of.CALL_WORDS
    for place, start in zip(parts, starts[1:], strict=False):
        head[place] = base + 8 * start
    head[call_of.SOURCES] = base + 8 * starts[-2]
    head[call_of.COUNT], head[call_of.BATCH] = count, batch
    head[call_of.OUT], head[call_of.OUT_BYTES] = out, width * item
    sources, first = list[int](), 0
    for column in columns:
        sources += column.source(stored, batch, base + 8 * starts[-1] + 4 * first)
        first += len(column.boundaries)
    content = np.zeros(size, np.int64)
    content[: starts[-1]] = [*head, *itertools.chain(*parts.values()), *sources]
    content[starts[-1] :].view(np.float32)[: len(limits)] = limits
    tiles = (plain[-1], starts[3]), (other[-1], starts[4])
    return Call(content, *tiles, width, starts[1])
