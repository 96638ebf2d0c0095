"""PruneDenseAndFillEmptyRows on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.gpu_ops.host.device_methods import on_host
from fusion.gpu_ops.layout.records import DenseIds, PrunedEntries
from fusion.ops.bags.cpu.entries import check_fill_id
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.ops.bags.gpu_steps import prune_dense as steps
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg, tid = spec.slots, spec.input_indices, DTYPES[types["Tid"]].stored_type
    dtype, out_dtype = DTYPES[types["Tdense"]].code, DTYPES[types["Tid"]].code
    fill_id, min_id = check_fill_id(spec, types), np.int64(np.iinfo(np.int64).min)
    mark, put = on_host(steps.mark_dense), on_host(steps.put_dense)
    fill = on_host(steps.fill_dense)

    def prune(frame: op.Frame, device: Any) -> None:
        filler = int64(fill_id(frame))
        batch, width = op.size(frame, arg.dense_ids, 0, 0), op.size(frame, arg.dense_ids, 0, 1)
        flags = op.output_vector(frame, 2, 0, batch, np.bool_).ctypes.data
        shape = op.output_vector(frame, 3, 0, int64(2), np.int64)
        if op.failed(frame):
            return
        shape[0], shape[1] = batch, width
        inputs = DenseIds(op.data(frame, arg.dense_ids, 0), dtype, batch, width, out_dtype)
        rules = DenseRules(
            op.attr(frame, slot.use_ignored_id),
            op.attr(frame, slot.ignored_id),
            op.attr(frame, slot.column_stride),
            op.attr(frame, slot.num_buckets),
            op.attr(frame, slot.bucket_default),
            int64(0) if op.attr(frame, slot.prune) != 0 else min_id,
        )
        marked, ids_of = mark(device, inputs, rules, flags, int64(0))
        totals = device.words(marked.totals, 2)
        kept_count, fills = totals[0], op.attr(frame, slot.fill_empty_row) != 0
        total = kept_count + (totals[1] if fills else int64(0))
        ids = op.output_vector(frame, 0, 0, total, tid).ctypes.data
        indices = op.output_matrix(frame, 1, 0, total, int64(2), np.int64).ctypes.data
        if op.failed(frame):
            return
        out = PrunedEntries(ids, indices, int64(0))
        put(device, inputs, marked, ids_of, out)
        if fills:
            fill(device, inputs, marked, kept_count, filler, out)

    return prune
