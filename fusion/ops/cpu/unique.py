"""UniqueWithCountsV3 on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.cpu_ops import unique as kernels
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import failed, output_vector, scratch, vector
from fusion.runtime.native.jit import int64
from fusion.runtime.native.layout import Frame
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[Frame], None]:
    """The kernel body."""
    tid = DTYPES[types["Tid"]].stored_type

    def body(frame: Frame) -> None:
        ids = vector(frame, 0, tid)
        count = ids.shape[0]
        if count > int64(2**30):
            text = "input has %lld ids, but at most %lld can be numbered"
            fail(frame, INVALID_ARGUMENT, text, count, int64(2**30))
            return
        bits = kernels.table_bits(count)
        slots = scratch(frame, int64(1) << bits, np.int32)
        keys = scratch(frame, count, tid)
        counts = scratch(frame, count, np.int32)
        unique_idxs = output_vector(frame, 1, 0, count, np.int32)
        if failed(frame):
            return
        slots[:] = 0
        key_count = kernels.find_unique(ids, slots, bits, keys, unique_idxs, counts)
        unique_keys = output_vector(frame, 0, 0, key_count, tid)
        unique_counts = output_vector(frame, 2, 0, key_count, np.int32)
        if failed(frame):
            return
        for k in range(key_count):
            unique_keys[k] = keys[k]
            unique_counts[k] = counts[k]

    return body
