"""UniqueWithCountsV3 on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.cpu_ops import unique as kernels
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    tid = DTYPES[types["Tid"]].stored_type

    def body(frame: op.Frame) -> None:
        ids = op.vector(frame, 0, tid)
        count = ids.shape[0]
        if count > int64(2**30):
            text = "input has %lld ids, but at most %lld can be numbered"
            op.fail(frame, op.INVALID_ARGUMENT, text, count, int64(2**30))
            return
        bits = kernels.table_bits(count)
        slots = op.scratch(frame, int64(1) << bits, np.int32)
        keys = op.scratch(frame, count, tid)
        counts = op.scratch(frame, count, np.int32)
        unique_idxs = op.output_vector(frame, 1, 0, count, np.int32)
        if op.failed(frame):
            return
        slots[:] = 0
        key_count = kernels.find_unique(ids, slots, bits, keys, unique_idxs, counts)
        unique_keys = op.output_vector(frame, 0, 0, key_count, tid)
        unique_counts = op.output_vector(frame, 2, 0, key_count, np.int32)
        if op.failed(frame):
            return
        for k in range(key_count):
            unique_keys[k] = keys[k]
            unique_counts[k] = counts[k]

    return body
