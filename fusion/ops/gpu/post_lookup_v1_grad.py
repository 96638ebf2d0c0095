"""FusedEmbeddingSparsePostLookUpGrad on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.steps.bag_gradient import GradBags, rows_of_shards, split_grads
from fusion.gpu_ops.steps.sharded_entries import join, joined_weights, order_shards
from fusion.ops.gpu.gradient import gradient_body
from fusion.ops.gpu.post_lookup_v1 import flags_checker, parts_reader
from fusion.runtime.native.frame import attr, data, failed, list_length, output_vector, size
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import stack_words, store
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg, tw = spec.slots, spec.input_indices, DTYPES[types["Tw"]].stored_type
    of_call, add_up, add_up_weights = gradient_body(spec, types)
    read, check_flags = parts_reader(spec, types), flags_checker(spec)
    join_parts, order, rows_of = on_host(join), on_host(order_shards), on_host(rows_of_shards)
    weights_of, split = on_host(joined_weights), on_host(split_grads)

    @jit
    def new_weight_grads(frame: int, device: Any, weighted: bool) -> int:
        """Allocates the second output; gives where its addresses are for the GPU."""
        count = list_length(frame)
        host = stack_words(count)
        for shard in range(count):
            number = size(frame, arg.emb_shards, shard, 0) if weighted else int64(0)
            store(host, shard, output_vector(frame, 1, shard, number, tw).ctypes.data)
        outs = device.reserve(8 * count)
        copy_in(device, outs, host, 8 * count)
        return outs

    def gradient(frame: int, device: Any) -> None:
        call, batch = of_call(frame), size(frame, arg.top_grad, 0, 0)
        check_flags(frame, batch)
        parts, _ = read(frame, device)
        if failed(frame):
            return
        joined, bits = join_parts(device, parts, batch, error_record(device)), int64(0)
        if parts.shard_count > 1:
            bits = -device.words(joined.results, 2)[0]
        ordered = order(device, parts, joined, batch, bits)
        weights = weights_of(device, parts, int64(0)) if parts.weights != 0 else int64(0)
        masked = data(frame, arg.row_empty_and_invalid_flags, 0)
        if attr(frame, slot.default_id) >= 0:
            masked = int64(0)
        bags = GradBags(
            parts.number, batch, ordered.owners, ordered.order, ordered.starts, weights,
            masked, int64(4), batch,
        )  # fmt: skip
        rows = rows_of(parts)
        scaled = add_up(frame, device, call, bags, rows)
        outs = new_weight_grads(frame, device, weights != 0)
        if weights != 0 and not failed(frame):
            grads = device.reserve(parts.weight_bytes * parts.number)
            add_up_weights(device, call, bags, rows, scaled, grads)
            split(device, parts, grads, outs)

    return gradient
