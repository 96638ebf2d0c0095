"""The steps of training on a GPU, checked against NumPy: ids before gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.gpu_ops.layout.records import NumberedEntries
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.tensorflow.dtypes import INT64
from fusion.schema.attributes import LAST_ROW
from tests.gpu_kernels.references import same

if TYPE_CHECKING:
    from tests.gpu_kernels.device import Gpu

#: Elements of a row of all three columns, on average.
_PER_ROW = 9


def columns(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """Three columns before their gathers: rows in order, in any order, and keys in order.

    The first has weights, and its empty rows are filled.
    """
    from benchmarks.gpu.call import Column
    from fusion.cpu_ops import column_layout
    from fusion.gpu_ops.layout import call as call_of
    from fusion.ops.columns.gpu_steps.listing import PreCall, list_entries, number_entries

    batch, each, filler = count // _PER_ROW + 1, count // 3, 5
    ids = [(count * draw.random(each) ** 3).astype(np.int64) for _ in range(3)]
    rows = [draw.integers(0, batch - 1, each) for _ in range(3)]
    rows[0].sort()
    rows[2].sort()
    heavy = draw.random(each).astype(np.float32)
    fills = {
        ColumnAttrs.fill_empty_row: 1,
        ColumnAttrs.default_id: filler,
        ColumnAttrs.default_weight: 0.5,
    }
    described = [
        Column(
            column_layout.ROW_IDS, 0, 2**63 - 1, 1, gpu.put(ids[k]), each, rows=gpu.put(rows[k]),
            weights=0 if k else gpu.put(heavy),
            attrs={
                ColumnAttrs.keys_dtype: INT64, ColumnAttrs.sort_key: int(k == 2),
                **({} if k else fills),
            },
        )
        for k in range(3)
    ]  # fmt: skip
    elements, starts = [each * k for k in range(4)], [0, *(batch + each * k for k in (1, 2, 3))]
    results = gpu.put_words([0] * call_of.result_words(3))
    own, sources = (
        gpu.put_words([word for column in described for word in column.column()]),
        gpu.put_words([word for one in described for word in one.source("float32", batch, 0)]),
    )
    layout = [3, batch, own, sources, gpu.put_words(elements), gpu.put_words(starts), results, 0]
    call = PreCall(gpu.put_words(layout), results, 3, batch, elements[3], starts[3])
    splits, entries = gpu.reserve(12 * (batch + 1)), gpu.reserve(4 * starts[3])
    weights = gpu.reserve(4 * starts[3])
    listed, paired = list_entries(gpu, call, splits)
    found = gpu.words(results, call_of.result_words(3))
    numbers = [int(one) for one in found[ErrorRecord.SIZE + 3 :][:3]]
    keys = [gpu.reserve(8 * number) for number in numbers]
    out = NumberedEntries(gpu.put_words(keys), entries, weights)
    number_entries(gpu, call, listed, paired, found, splits, out)
    gpu.check_errors("columns", results)
    places = gpu.get(entries, np.int32, starts[3])
    ends = gpu.get(splits, np.int32, 3 * (batch + 1)).reshape(3, batch + 1)
    empty = np.setdiff1d(np.arange(batch), rows[0])
    ids[0] = np.concatenate([ids[0], np.full(empty.size, filler)])
    rows[0] = np.concatenate([rows[0], empty])
    heavy = np.concatenate([heavy, np.full(empty.size, np.float32(0.5))])
    for k in range(3):
        order = np.argsort(rows[k], kind="stable")
        same("columns", ends[k], starts[k] + np.searchsorted(rows[k][order], np.arange(batch + 1)))
        mine = gpu.get(keys[k], np.int64, numbers[k])
        same("columns", mine, _distinct(ids[k][order], is_sorted=k == 2))
        same("columns", mine[places[starts[k] :][: order.size]], ids[k][order])
    told_weights = gpu.get(weights, np.float32, heavy.size)
    same("weights of columns", told_weights, heavy[np.argsort(rows[0], kind="stable")])
    return 0.0


def columns_to_last(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """Two columns before their gathers, with as many rows as the last entries have."""
    from benchmarks.gpu.call import Column
    from fusion.cpu_ops import column_layout
    from fusion.gpu_ops.layout import call as call_of
    from fusion.ops.columns.gpu_steps.listing import (
        PreCall,
        list_entries,
        number_entries,
        split_rows,
    )

    batch, each = count // _PER_ROW + 1, count // 2 + 1
    ids = [draw.integers(0, count + 1, each) for _ in range(2)]
    rows = [np.sort(draw.integers(0, batch, each)) for _ in range(2)]
    rows[0][-1] = rows[1][-1] = batch - 1
    attrs = {ColumnAttrs.keys_dtype: INT64, ColumnAttrs.row_count: LAST_ROW}
    described = [
        Column(
            column_layout.ROW_IDS, 0, 2**63 - 1, 1, gpu.put(ids[k]), each, rows=gpu.put(rows[k]),
            attrs=attrs,
        )
        for k in range(2)
    ]  # fmt: skip
    own, sources, starts, results = (
        gpu.put_words([word for column in described for word in column.column()]),
        gpu.put_words([word for one in described for word in one.source("float32", 1, 0)]),
        gpu.put_words([0, each, 2 * each]),
        gpu.put_words([0] * call_of.result_words(2)),
    )
    layout = gpu.put_words([2, 1, own, sources, starts, starts, results, 1])
    call = PreCall(layout, results, 2, 1, 2 * each, 2 * each)
    one_row, entries = gpu.reserve(16), gpu.reserve(8 * each)
    listed, paired = list_entries(gpu, call, one_row)
    found = gpu.words(results, call_of.result_words(2))
    same("rows up to the last", found[ErrorRecord.SIZE + 6 :], np.full(2, batch))
    splits = gpu.reserve(8 * (batch + 1))
    split_rows(gpu, call, listed, batch, splits)
    numbers = [int(one) for one in found[ErrorRecord.SIZE + 2 :][:2]]
    keys = [gpu.reserve(8 * number) for number in numbers]
    out = NumberedEntries(gpu.put_words(keys), entries, 0)
    number_entries(gpu, call, listed, paired, found, one_row, out)
    gpu.check_errors("columns", results)
    places = gpu.get(entries, np.int32, 2 * each)
    ends = gpu.get(splits, np.int32, 2 * (batch + 1)).reshape(2, batch + 1)
    for k in range(2):
        wanted = each * k + np.searchsorted(rows[k], np.arange(batch + 1))
        same("rows up to the last", ends[k], wanted.astype(np.int32))
        mine = gpu.get(keys[k], np.int64, numbers[k])
        same("columns", mine, _distinct(ids[k], is_sorted=False))
        same("columns", mine[places[each * k :][:each]], ids[k])
    return 0.0


def _distinct(ids: npt.NDArray[Any], is_sorted: bool) -> npt.NDArray[Any]:
    """Distinct ids in their order, or else in that of their first occurrences."""
    found, at = np.unique(ids, return_index=True)
    return found if is_sorted else ids[np.sort(at)]
