"""FusedEmbeddingSparsePostLookUpV2Grad on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fusion.gpu_ops.host.device_methods import copy_in, on_host
from fusion.gpu_ops.layout.records import Gradient, Scales
from fusion.ops.bags.gpu_steps.bag_gradient import add_up, add_up_weights
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


class GradientBody(NamedTuple):
    """The jitted functions of a gradient op.

    Attributes:
        of_call: (frame) -> the call's `Gradient`; reports what is not supported.
        add_up: (frame, device, Gradient, GradBags, GatheredRows) -> what the gradient of weights
            needs; makes the op's first output.
        add_up_weights: of `steps.bag_gradient`.
    """

    of_call: Any
    add_up: Any
    add_up_weights: Any


def gradient_body(spec: OpSpec, types: Mapping[str, str]) -> GradientBody:
    """The functions of a gradient op."""
    slot, arg = spec.slots, spec.input_indices
    dtype, stored = DTYPES[types["T"]].code, DTYPES[types["T"]].stored_type
    alike, add_up_rows = types["T"] == types["Tw"], on_host(add_up)

    @jit
    def of_call(frame: op.Frame) -> Any:
        if op.attr(frame, slot.use_sparse_weights) != 0 and not alike:
            text = "on a GPU, weights must be of the dtype of emb_shards"
            op.fail(frame, op.INVALID_ARGUMENT, text)
        clips = int64(op.attr_float(frame, slot.max_norm) >= 0)
        top, dim = op.data(frame, arg.top_grad, 0), op.size(frame, arg.top_grad, 0, 1)
        limit, combiner = op.attr(frame, slot.max_norm), op.attr(frame, slot.combiner)
        return Gradient(top, dtype, dim, combiner, clips, limit)

    @jit
    def add_up_outputs(frame: op.Frame, device: Any, call: Any, bags: Any, rows: Any) -> Any:
        count = op.list_length(frame)
        host = stack_words(count)
        for shard in range(count):
            number = op.size(frame, arg.emb_shards, shard, 0)
            out = op.output_matrix(frame, 0, shard, number, call.dim, stored)
            store(host, shard, out.ctypes.data)
        outs = device.reserve(8 * count)
        copy_in(device, outs, host, 8 * count)
        if op.failed(frame):
            return Scales(int64(0), int64(0), int64(0), int64(0))
        return add_up_rows(device, call, bags, rows, outs)

    return GradientBody(of_call, add_up_outputs, on_host(add_up_weights))
