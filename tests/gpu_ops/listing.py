"""Calls of the kernels before gathers in the simulator, and the same by the CPU's op."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.gpu.call import Column
from fusion import ops
from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.records import NumberedEntries
from fusion.ops.columns.gpu_steps.listing import PreCall, list_entries, number_entries, split_rows
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.tensorflow.dtypes import DTYPES, INT64
from tests.gpu_ops.simulation import FORMS, Simulated

#: Attrs of a column that are words: the name of its list, its word, its default.
ATTRS: dict[str, tuple[str, int, Any]] = {
    "prune": ("prunes", ColumnAttrs.prune, False),
    "fill_empty_row": ("fill_empty_rows", ColumnAttrs.fill_empty_row, False),
    "default_id": ("default_ids", ColumnAttrs.default_id, -1),
    "prune_sparse_weights": ("prune_sparse_weights", ColumnAttrs.prune_sparse_weights, False),
    "default_weight": ("default_weights", ColumnAttrs.default_weight, 1.0),
    "use_ignored_id": ("use_ignored_ids", ColumnAttrs.use_ignored_id, False),
    "ignored_id": ("ignored_ids", ColumnAttrs.ignored_id, -1),
    "column_stride": ("column_strides", ColumnAttrs.column_stride, 0),
    "num_buckets": ("num_buckets", ColumnAttrs.num_buckets, 0),
    "bucket_default": ("bucket_defaults", ColumnAttrs.bucket_default, 0),
    "sort_key": ("sort_keys", ColumnAttrs.sort_key, False),
}


@dataclass
class Given:
    """A column's arrays, and the attrs that are not their defaults."""

    form: str
    ids: Any
    rows: Any = None
    weights: Any = None
    boundaries: Sequence[float] = ()
    last_row: bool = False
    keys: str = "int64"
    attrs: dict[str, Any] = field(default_factory=dict)

    def column(self, device: Simulated) -> Column:
        """The column as kernels find it."""
        attrs = {ATTRS[name][1]: value for name, value in self.attrs.items()}
        attrs |= {
            ColumnAttrs.row_count: self.last_row,
            ColumnAttrs.keys_dtype: DTYPES[self.keys].code,
        }
        rows = self.rows
        return Column(
            FORMS.index(self.form), 0, 2**63 - 1, 1,
            ids=device.put(self.ids),
            id_count=self.ids.size,
            id_columns=self.ids.shape[1] if self.form == "dense" else 1,
            ids_kind=DTYPES[self.ids.dtype.name].code,
            rows=0 if rows is None else device.put(rows),
            row_step=2 if self.form == "indices" else 1,
            rows_kind=INT64 if rows is None else DTYPES[rows.dtype.name].code,
            weights=0 if self.weights is None else device.put(self.weights),
            boundaries=self.boundaries,
            attrs=attrs,
        )  # fmt: skip


def by_cpu(batch: int, columns: Sequence[Given], dtype: Any, **given: Any) -> Any:
    """What the CPU's op makes of columns."""
    nothing, no_rows = np.zeros([1], dtype), np.zeros([0], np.int64)
    lists = {
        plural: [column.attrs.get(name, default) for column in columns]
        for name, (plural, _, default) in ATTRS.items()
    }
    return ops.grouped_embedding_pre_look_up(
        ids=[column.ids for column in columns],
        entry_rows=[no_rows if column.rows is None else column.rows for column in columns],
        dense_shapes=[np.array([batch, 1], np.int64) for _ in columns],
        weights=[nothing if column.weights is None else column.weights for column in columns],
        Tkeys=[tf.as_dtype(column.keys) for column in columns],
        forms=[column.form for column in columns],
        use_sparse_weights=[column.weights is not None for column in columns],
        row_counts=["last_row" if column.last_row else "dense_shape" for column in columns],
        boundaries=[limit for column in columns for limit in column.boundaries],
        boundary_counts=[len(column.boundaries) for column in columns],
        **lists,
        **given,
    )


def _sums(numbers: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(numbers, initial=0))


def call_in(
    device: Simulated, batch: int, columns: Sequence[Given], dtype: Any, is_open: bool
) -> PreCall:
    """The words of a call in memory."""
    described, count = [column.column(device) for column in columns], len(columns)
    limits = [device.put(np.array([*column.boundaries, 0], np.float32)) for column in columns]
    stored = np.dtype(dtype).name
    own = [word for one in described for word in one.column()]
    sources = [
        word
        for one, first in zip(described, limits, strict=True)
        for word in one.source(stored, batch, first)
    ]
    elements = _sums([column.ids.size for column in columns])
    fills = [batch * bool(column.attrs.get("fill_empty_row")) for column in columns]
    firsts = _sums([one.ids.size + filled for one, filled in zip(columns, fills, strict=True)])
    results = [0] * call_of.result_words(count)
    parts = [
        device.put(np.array(part, np.int64)) for part in (own, sources, elements, firsts, results)
    ]
    call = device.put(np.array([count, batch, *parts, is_open], np.int64))
    return PreCall(call, parts[-1], count, batch, elements[-1], firsts[-1])


def by_steps(
    batch: int, columns: Sequence[Given], dtype: Any, is_open: bool = False
) -> tuple[Any, list[int]]:
    """What the steps make of columns, and the errors that they report.

    After an error there is no result.

    Args:
        is_open: whether the steps have to find out how many rows there are.
    """
    device, count, rows = Simulated(), len(columns), 1 if is_open else batch
    call = call_in(device, rows, columns, dtype, is_open)
    splits, entries = device.reserve(4 * count * (rows + 1)), device.reserve(4 * call.entries)
    listed, paired = list_entries(device, call, splits)
    results = device.words(call.results, call_of.result_words(count))
    errors = [int(word) for word in results[: ErrorRecord.SIZE]]
    if errors[0]:
        return None, errors
    to_last = results[ErrorRecord.SIZE + 3 * count :]
    assert [int(one) for one in to_last] == [batch * column.last_row for column in columns]
    item, weighted = np.dtype(dtype).itemsize, any(column.weights is not None for column in columns)
    weights = device.reserve(item * call.entries) if weighted else 0
    first = ErrorRecord.SIZE + count
    keys = [
        np.full(number, 77, one.keys)
        for number, one in zip(results[first : first + count], columns, strict=True)
    ]
    outs = device.put(np.array([device.put(one) for one in keys], np.int64))
    out = NumberedEntries(outs, entries, weights)
    number_entries(device, call, listed, paired, results, splits, out)
    if is_open:
        splits = device.reserve(4 * count * (batch + 1))
        split_rows(device, call, listed, batch, splits)
    return (
        keys,
        device.get(entries, call.entries, np.int32),
        device.get(splits, count * (batch + 1), np.int32).reshape(count, batch + 1),
        device.get(weights, call.entries, dtype) if weighted else np.zeros([0], dtype),
    ), errors
