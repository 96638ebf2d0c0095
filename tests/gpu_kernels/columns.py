"""Columns of all kinds, combined in one call on a GPU: checked against NumPy, in each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOAT32, INT32
from tests.gpu_kernels.references import (
    MEAN,
    SQRTN,
    SUM,
    Doubles,
    bags,
    clipped,
    close,
    doubles,
    kept,
    limit_among,
    same,
)

if TYPE_CHECKING:
    from benchmarks.gpu.call import Call, Column
    from tests.gpu_kernels.device import Gpu

_ROWS, _PER_ROW = 50, 9
#: At most so many elements: for each bag all those are read whose rows are not in order.
_MOST = 20_000


def combine(
    gpu: Gpu,
    stored: str,
    batch: int,
    columns: Sequence[Column],
    row_bytes: int | None = None,
) -> tuple[Doubles, Call]:
    """What a call gives, written over poison, and its words.

    Args:
        row_bytes: of each table, instead of those that its shape says.
    """
    from benchmarks.gpu import call as calls
    from fusion.gpu_ops.layout.arrays import array_index
    from fusion.gpu_ops.steps import combine as steps

    width, kind = sum(column.dim for column in columns), DTYPES[stored].code
    out = gpu.reserve(8 * batch * width)
    call = calls.prepare(stored, batch, columns, out, gpu.reserve)
    if row_bytes is not None:
        first = array_index(call.words, call.base, CombineCall.inputs) + ColumnInputs.row_bytes
        call.words[first :: ColumnInputs.SIZE][: len(columns)] = row_bytes
    gpu.write(call.base, call.words)
    checked, tiles = call.tiles(CombineCall.check_tiles), call.tiles(CombineCall.tiles)
    if checked:
        steps.check_rows(gpu, call.base, checked)
    if tiles:
        steps.combine_columns(gpu, kind, call.base, tiles, call.is_plain)
    gpu.check_errors("columns", call.base + 8 * call.errors)
    return gpu.numbers(out, stored, (batch, width)), call


class _Columns:
    """Columns of a call, and what they should give."""

    def __init__(self, gpu: Gpu, draw: np.random.Generator, stored: str, count: int) -> None:
        self.gpu, self.draw, self.stored = gpu, draw, stored
        self.count = min(count, _MOST)
        self.batch = self.count // _PER_ROW + 1
        self.columns: list[Column] = []
        self.wanted: list[Doubles] = []
        self.sizes: list[Doubles] = []

    def owners(self) -> npt.NDArray[np.int64]:
        """The bags of entries in any order; the last one has none."""
        return self.draw.integers(0, self.batch - 1, self.count)

    def add(
        self,
        form: int,
        dim: int,
        combiner: int,
        entries: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None],
        attrs: dict[int, Any],
        is_clipped: bool = False,
        **given: Any,
    ) -> None:
        """Adds a column, whose table is drawn.

        Args:
            entries: what counts: the row of the table, the bag and the weight of each entry.
            attrs, given: as the kernel finds them, see `benchmarks.gpu.call.Column`.
        """
        from benchmarks.gpu.call import Column

        table, rows = self.gpu.drawn(self.draw, (_ROWS, dim), self.stored)
        numbers, owners, weights = entries
        limit = limit_among(rows) if is_clipped else -1.0
        attrs = {ColumnAttrs.combiner: combiner, ColumnAttrs.max_norm: limit, **attrs}
        self.columns.append(Column(form, table, _ROWS, dim, attrs=attrs, **given))
        factors = np.ones(owners.size) if weights is None else weights
        wanted, size = bags(clipped(rows, limit)[numbers], owners, factors, combiner, self.batch)
        self.wanted.append(wanted)
        self.sizes.append(size)

    def weighted(self) -> None:
        """Indices in any order, with weights; rows without entries are filled."""
        from fusion.cpu_ops import column_layout

        ids, owners = self.draw.integers(-1, _ROWS, self.count), self.owners()
        weights = kept(self.draw.uniform(-0.5, 2, self.count), self.stored)
        heavy = doubles(weights)
        keeps = (ids >= 0) & (heavy > 0)
        empty = np.setdiff1d(np.arange(self.batch), owners[keeps])
        entries = (
            np.concatenate([ids[keeps], np.full(empty.size, 2)]),
            np.concatenate([owners[keeps], empty]),
            np.concatenate([heavy[keeps], np.full(empty.size, 0.5)]),
        )
        attrs = {
            ColumnAttrs.prune: 1,
            ColumnAttrs.prune_sparse_weights: 1,
            ColumnAttrs.fill_empty_row: 1,
            ColumnAttrs.default_id: 2,
        }
        self.add(
            column_layout.INDICES, 16, MEAN, entries, {**attrs, ColumnAttrs.default_weight: 0.5},
            ids=self.gpu.put(ids), id_count=ids.size,
            rows=self.gpu.put(np.stack([owners, owners], 1)), row_step=2,
            weights=self.gpu.put(weights),
        )  # fmt: skip

    def by_rows(self, dim: int, combiner: int, in_order: bool, is_clipped: bool) -> None:
        """Entries with their rows."""
        from fusion.cpu_ops import column_layout

        ids, owners = self.draw.integers(-1, _ROWS, self.count), self.owners()
        if in_order:
            owners.sort()
        keeps = ids >= 0
        self.add(
            column_layout.ROW_IDS, dim, combiner, (ids[keeps], owners[keeps], None),
            {ColumnAttrs.prune: 1},
            is_clipped, ids=self.gpu.put(ids), id_count=ids.size,
            rows=self.gpu.put(owners.astype(np.int32)), rows_kind=INT32,
        )  # fmt: skip

    def by_splits(self, dim: int, combiner: int) -> None:
        """Entries row by row."""
        from fusion.cpu_ops import column_layout

        ids, owners = self.draw.integers(0, _ROWS, self.count), np.sort(self.owners())
        splits = np.searchsorted(owners, np.arange(self.batch + 1)).astype(np.int32)
        self.add(
            column_layout.ROW_SPLITS, dim, combiner, (ids, owners, None), {},
            ids=self.gpu.put(ids.astype(np.int32)), id_count=ids.size, ids_kind=INT32,
            rows=self.gpu.put(splits), rows_kind=INT32,
        )  # fmt: skip

    def bucketized(self) -> None:
        """One value for each row, between boundaries."""
        from fusion.cpu_ops import column_layout

        values = self.draw.standard_normal(self.batch).astype(np.float32)
        limits = np.sort(self.draw.standard_normal(_ROWS - 1).astype(np.float32))
        ids = np.searchsorted(limits, values, side="right")
        self.add(
            column_layout.DENSE, 4, SUM, (ids, np.arange(self.batch), None), {},
            ids=self.gpu.put(values), id_count=self.batch, ids_kind=FLOAT32,
            boundaries=limits.tolist(),
        )  # fmt: skip

    def dense(self) -> None:
        """Three ids for each row: one that is ignored, strides, buckets."""
        from fusion.cpu_ops import column_layout

        given = self.draw.integers(-2, 8, (self.batch, 3))
        ids, owners = given + 7 * np.arange(3), np.repeat(np.arange(self.batch), 3)
        ids = np.where((ids < 0) | (ids >= 15), 11, ids)
        counts = (given != 5).reshape(-1)
        attrs = {
            ColumnAttrs.use_ignored_id: 1,
            ColumnAttrs.ignored_id: 5,
            ColumnAttrs.column_stride: 7,
        }
        attrs |= {ColumnAttrs.num_buckets: 15, ColumnAttrs.bucket_default: 11}
        self.add(
            column_layout.DENSE, 8, SQRTN, (ids.reshape(-1)[counts], owners[counts], None), attrs,
            ids=self.gpu.put(given.astype(np.int32)), id_count=given.size, id_columns=3,
            ids_kind=INT32,
        )  # fmt: skip

    def copied(self, dim: int) -> None:
        """What was computed before."""
        from benchmarks.gpu.call import Column
        from fusion.cpu_ops import column_layout

        table, rows = self.gpu.drawn(self.draw, (self.batch, dim), self.stored)
        self.columns.append(Column(column_layout.COPY, table, self.batch, dim, 0, 0))
        self.wanted.append(rows)
        self.sizes.append(np.abs(rows))


def columns(gpu: Gpu, count: int, draw: np.random.Generator, stored: str) -> float:
    """Columns of all forms and rules, side by side, and then the plain ones among them."""
    found = _Columns(gpu, draw, stored, count)
    found.weighted()
    found.by_rows(8, SUM, in_order=False, is_clipped=False)
    found.by_rows(12, SQRTN, in_order=True, is_clipped=True)
    found.by_splits(3, MEAN)
    found.bucketized()
    found.dense()
    found.copied(13)
    is_unsorted, error = np.array([1, 1, 0, 0, 0, 0, 0]), 0.0
    for places, is_plain in ((range(7), False), ((1, 3, 6), True)):
        chosen = [found.columns[k] for k in places]
        mine, call = combine(gpu, stored, found.batch, chosen)
        same("plain columns", np.array(call.is_plain), np.array(is_plain))
        unsorted = gpu.words(int(call.words[CombineCall.unsorted]), len(chosen))
        same("columns in any order", unsorted, is_unsorted[list(places)])
        wanted, sizes = (
            np.hstack([all_[k] for k in places]) for all_ in (found.wanted, found.sizes)
        )
        error = max(error, close("columns", stored, mine, wanted, sizes))
    return error
