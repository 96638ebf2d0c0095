"""EmbeddingKeyIndex on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fusion.ops.tables.cpu.pages import zeros_output
from fusion.ops.tables.cpu_kernels.index import begin_index
from fusion.ops.tables.cpu_kernels.layout import MAX_ROWS, KeyIndex, index_bytes
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record
from fusion.runtime.tensorflow.spec import OpSpec

_index_bytes = jit(index_bytes)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    slot = spec.slots

    def body(frame: op.Frame) -> None:
        capacity = op.vector(frame, 0, np.int64)[0]
        if capacity < 1 or capacity > MAX_ROWS:
            text = "capacity must be from 1 to %lld, but is %lld"
            op.fail(frame, op.INVALID_ARGUMENT, text, int64(MAX_ROWS), capacity)
            return
        size = _index_bytes(capacity)
        words = as_record(KeyIndex, zeros_output(frame, int64(1), size // 8, int64(1), int64(8)))
        if op.failed(frame):
            return
        admission, seed = op.attr(frame, slot.admission), op.attr(frame, slot.seed)
        begin_index(words, capacity, admission, seed, op.attr(frame, slot.waits))

    return body
