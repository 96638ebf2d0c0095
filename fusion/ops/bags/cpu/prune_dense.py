"""PruneDenseAndFillEmptyRows on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.ops.bags.cpu.entries import check_fill_id
from fusion.ops.bags.cpu_kernels import prune_dense as kernels
from fusion.ops.bags.cpu_kernels.prune import count_true
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    dense_type, tid = DTYPES[types["Tdense"]].stored_type, DTYPES[types["Tid"]].stored_type
    slot, arg = spec.slots, spec.input_indices
    fill_id, min_id = check_fill_id(spec, types), np.int64(np.iinfo(np.int64).min)

    def body(frame: op.Frame) -> None:
        filler = fill_id(frame)
        if op.failed(frame):
            return
        ids = op.matrix(frame, arg.dense_ids, 0, dense_type)
        rules = DenseRules(
            op.attr(frame, slot.use_ignored_id) != 0,
            op.attr(frame, slot.ignored_id),
            op.attr(frame, slot.column_stride),
            op.attr(frame, slot.num_buckets),
            op.attr(frame, slot.bucket_default),
            int64(0) if op.attr(frame, slot.prune) != 0 else min_id,
        )
        is_row_empty = op.output_vector(frame, 2, 0, ids.shape[0], np.bool_)
        dense_shape = op.output_vector(frame, 3, 0, int64(2), np.int64)
        if op.failed(frame):
            return
        dense_shape[0] = ids.shape[0]
        dense_shape[1] = ids.shape[1]
        kept_count = kernels.mark_dense_rows(ids, rules, tid, is_row_empty)
        fill = op.attr(frame, slot.fill_empty_row) != 0
        total = kept_count + (count_true(is_row_empty) if fill else int64(0))
        out_values = op.output_vector(frame, 0, 0, total, tid)
        out_indices = op.output_matrix(frame, 1, 0, total, int64(2), np.int64)
        if op.failed(frame):
            return
        kernels.list_dense_entries(ids, rules, tid, is_row_empty, filler, out_values, out_indices)

    return body
