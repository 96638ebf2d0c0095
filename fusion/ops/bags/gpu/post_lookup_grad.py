"""FusedEmbeddingSparsePostLookUpV2Grad on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusion.gpu_ops.host.device_methods import error_record, on_host
from fusion.gpu_ops.layout.records import GatheredRows, GradBags
from fusion.ops.bags.gpu.bags import shard_lister
from fusion.ops.bags.gpu.gradient import gradient_body
from fusion.ops.bags.gpu.post_lookup import entries_of
from fusion.ops.bags.gpu_steps.bag_gradient import rows_of_ids
from fusion.ops.bags.gpu_steps.bags import by_row
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg, tw = spec.slots, spec.input_indices, DTYPES[types["Tw"]].stored_type
    item, functions = DTYPES[types["T"]].item_bytes, gradient_body(spec, types)
    of_call, add_up, add_up_weights = functions
    entries, list_shards = entries_of(spec, types), shard_lister(spec)
    in_bags, find_rows = on_host(by_row), on_host(rows_of_ids)

    @jit
    def masks_of(frame: op.Frame) -> Any:
        """The flags of rows that have no gradient; 0: there are none."""
        if op.attr(frame, slot.fill_empty_row) == 0 or op.attr(frame, slot.default_id) >= 0:
            return int64(0), int64(0)
        return op.data(frame, arg.is_row_empty, 0), op.size(frame, arg.is_row_empty, 0, 0)

    def gradient(frame: op.Frame, device: Any) -> None:
        call, batch = of_call(frame), op.size(frame, arg.top_grad, 0, 0)
        listed = entries(frame, batch)
        shards, firsts, total, _ = list_shards(frame, device)
        if op.failed(frame):
            return
        errors, number = error_record(device), listed.number
        rows = GatheredRows(
            total, op.list_length(frame), shards, firsts, call.dim * item,
            op.data(frame, arg.partition_permutation, 0),
        )  # fmt: skip
        ordered = in_bags(device, listed, errors)
        keys = find_rows(device, ordered, op.data(frame, arg.unique_idxs, 0), rows, errors)
        masked, flags = masks_of(frame)
        bags = GradBags(ordered, keys, listed.weights, masked, flags)
        scaled = add_up(frame, device, call, bags, rows)
        weighted = listed.weights != 0
        grads = op.output_vector(frame, 1, 0, number if weighted else int64(0), tw)
        if weighted and not op.failed(frame):
            add_up_weights(device, call, bags, rows, scaled, grads.ctypes.data)

    return gradient
