"""PruneInvalidAndFillEmptyRows on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.ops.bags.cpu.entries import listing
from fusion.ops.bags.cpu.float_access import access
from fusion.ops.bags.cpu_kernels import prune as kernels
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    tid, weight = DTYPES[types["Tid"]].stored_type, access(types["Tw"])
    stored, read = weight.stored, weight.read
    slot, arg = spec.slots, spec.input_indices
    check_shape, _, mark, list_entries, fill_id, fill_weight = listing(spec, types, "prune")

    def body(frame: op.Frame) -> None:
        check_shape(frame)
        filler = fill_id(frame)
        if op.failed(frame):
            return
        values = op.vector(frame, arg.sp_values, tid)
        indices = op.matrix(frame, arg.sp_indices, 0, np.int64)
        weights = op.vector(frame, arg.sp_weights_values, stored)
        readable = read(frame, weights)
        batch = op.vector(frame, arg.sp_dense_shape, np.int64)[0]
        use_weights = op.attr(frame, slot.use_sparse_weights) != 0
        is_row_empty = op.output_vector(frame, 3, 0, batch, np.bool_)
        if op.failed(frame):
            return
        kept_count = mark(frame, readable, is_row_empty)
        if op.failed(frame):
            return
        fill = op.attr(frame, slot.fill_empty_row) != 0
        total = kept_count + (kernels.count_true(is_row_empty) if fill else int64(0))
        buckets = op.attr(frame, slot.num_buckets)
        if kept_count == values.shape[0] and total == kept_count and buckets == 0:
            op.forward_input(frame, 0, arg.sp_values)
            op.forward_input(frame, 1, arg.sp_indices)
            if use_weights:
                op.forward_input(frame, 2, arg.sp_weights_values)
        else:
            entries = list_entries(frame, readable, is_row_empty, total)
            out_values = op.output_vector(frame, 0, 0, total, tid)
            out_indices = op.output_matrix(frame, 1, 0, total, 2, np.int64)
            if op.failed(frame):
                return
            kernels.take_values(values, entries, filler, out_values)
            if buckets > 0:
                # Entries that were filled in stand behind, and are ids already.
                kernels.put_in_buckets(
                    out_values[:kept_count], buckets, op.attr(frame, slot.bucket_default)
                )
            kernels.take_indices(indices, entries, out_indices)
            if use_weights:
                out_weights = op.output_vector(frame, 2, 0, total, stored)
                weight_of_filler = fill_weight(frame)
                if not op.failed(frame):
                    kernels.take_values(weights, entries, weight_of_filler, out_weights)
        if not use_weights:
            out_weights = op.output_vector(frame, 2, 0, total, stored)
            out_weights[:] = fill_weight(frame)

    return body
