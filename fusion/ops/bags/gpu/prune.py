"""PruneInvalidAndFillEmptyRows on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.gpu_ops.host.device_methods import error_record, on_host
from fusion.gpu_ops.layout.records import Entries, Ids, PrunedEntries
from fusion.ops.bags.cpu.entries import check_fill_id, pruner, shape_checker, weight_of_filler
from fusion.ops.bags.gpu.bits import bits_of
from fusion.ops.bags.gpu_steps import prune as steps
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg = spec.slots, spec.input_indices
    tid, dtype = DTYPES[types["Tid"]].stored_type, DTYPES[types["Tid"]].code
    stored, weights_dtype = DTYPES[types["Tw"]].stored_type, DTYPES[types["Tw"]].code
    item, bits = DTYPES[types["Tw"]].item_bytes, bits_of(DTYPES[types["Tw"]].stored_type)
    check_shape, prunes = shape_checker(spec), pruner(spec, "prune")
    fill_id, fill_weight = check_fill_id(spec, types), weight_of_filler(spec, types)
    mark, put, fill = on_host(steps.mark), on_host(steps.put), on_host(steps.fill)
    put_flags, put_in_buckets = on_host(steps.put_flags), on_host(steps.put_in_buckets)
    fill_elements = on_host(steps.fill_elements)

    def prune(frame: op.Frame, device: Any) -> None:
        check_shape(frame)
        filler, weight = int64(fill_id(frame)), bits(fill_weight(frame))
        if op.failed(frame):
            return
        batch = op.vector(frame, arg.sp_dense_shape, np.int64)[0]
        is_row_empty = op.output_vector(frame, 3, 0, batch, np.bool_)
        if op.failed(frame):
            return
        count, weights = (
            op.size(frame, arg.sp_values, 0, 0),
            op.data(frame, arg.sp_weights_values, 0),
        )
        weighted = op.attr(frame, slot.use_sparse_weights) != 0
        entries = Entries(
            op.data(frame, arg.sp_values, 0), dtype, count, op.data(frame, arg.sp_indices, 0),
            batch, weights if weighted else int64(0), weights_dtype, item if weighted else int64(0),
        )  # fmt: skip
        min_id, by_weight = prunes(frame)
        marked = mark(device, entries, min_id, int64(by_weight), error_record(device))
        totals = device.words(marked.totals, 2)
        kept_count, fills = totals[0], op.attr(frame, slot.fill_empty_row) != 0
        total = kept_count + (totals[1] if fills else int64(0))
        ids = op.output_vector(frame, 0, 0, total, tid).ctypes.data
        indices = op.output_matrix(frame, 1, 0, total, 2, np.int64).ctypes.data
        out_weights = op.output_vector(frame, 2, 0, total, stored).ctypes.data
        if op.failed(frame):
            return
        put_flags(device, marked.empty, batch, is_row_empty.ctypes.data)
        out = PrunedEntries(ids, indices, out_weights)
        put(device, entries, marked, out)
        if fills:
            fill(device, entries, marked, kept_count, filler, weight, out)
        if op.attr(frame, slot.num_buckets) > 0:
            # Fillers come after the entries, and are ids already.
            buckets, default = op.attr(frame, slot.num_buckets), op.attr(frame, slot.bucket_default)
            put_in_buckets(device, Ids(ids, dtype, kept_count), buckets, default)
        if not weighted:
            fill_elements(device, out_weights, total, weight, item)

    return prune
