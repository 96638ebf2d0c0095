"""ZerosOnDemand on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.tables.cpu.pages import zeros_output
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64
from fusion.runtime.native.pointers import as_words
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    item = DTYPES[types["T"]].item_bytes

    def body(frame: op.Frame) -> None:
        shape = as_words(op.data(frame, 0, 0))
        rows, columns = shape[0], shape[1]
        if rows < 0 or columns < 0:
            text = "shape must not be negative, but is [%lld, %lld]"
            op.fail(frame, op.INVALID_ARGUMENT, text, rows, columns)
            return
        zeros_output(frame, int64(2), rows, columns, int64(item))

    return body
