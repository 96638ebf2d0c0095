"""UniqueWithCountsV3 on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.gpu_ops.host.device_methods import on_host
from fusion.gpu_ops.layout.records import Ids
from fusion.ops.bags.gpu_steps.unique import find_firsts, number_ids
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec

#: As on the CPU.
_MAX_IDS = 2**30


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame, Any], None]:
    """The kernel body (frame, device)."""
    tid = DTYPES[types["Tid"]].stored_type
    dtype = DTYPES[types["Tid"]].code
    find, number = on_host(find_firsts), on_host(number_ids)

    def unique(frame: op.Frame, device: Any) -> None:
        count = op.size(frame, 0, 0, 0)
        ids = Ids(op.data(frame, 0, 0), dtype, count)
        if count > _MAX_IDS:
            text = "input has %lld ids, but at most %lld can be numbered"
            op.fail(frame, op.INVALID_ARGUMENT, text, count, int64(_MAX_IDS))
            return
        unique_idxs = op.output_vector(frame, 1, 0, count, np.int32)
        firsts = find(device, ids)
        key_count = device.words(firsts.total, 1)[0]
        keys = op.output_vector(frame, 0, 0, key_count, tid)
        counts = op.output_vector(frame, 2, 0, key_count, np.int32)
        if op.failed(frame):
            return
        number(
            device, ids, firsts, key_count,
            keys.ctypes.data, unique_idxs.ctypes.data, counts.ctypes.data,
        )  # fmt: skip

    return unique
