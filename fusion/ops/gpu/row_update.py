"""FusedEmbeddingRowUpdate on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusion.cpu_ops.rules import MOST_SLOTS
from fusion.gpu_ops.host.device_methods import error_record, on_host
from fusion.gpu_ops.steps.row_update import Slots, update_rows
from fusion.ops.cpu.row_update import count_checker
from fusion.runtime.native.frame import (
    attr,
    count_rows,
    data,
    failed,
    list_length,
    new_output,
    size,
)
from fusion.runtime.native.jit import int64
from fusion.runtime.native.memory import load, stack_words, store
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg, kind = spec.slots, spec.input_indices, DTYPES[types["T"]].code
    item, check_counts = DTYPES[types["T"]].item_bytes, count_checker(spec)
    update = on_host(update_rows)

    def update_row(frame: int, device: Any) -> None:
        rule = attr(frame, slot.rule)
        check_counts(frame, rule)
        if failed(frame):
            return
        rows, dim = size(frame, arg.updates, 0, 0), size(frame, arg.updates, 0, 1)
        count_rows(frame, rows)
        old, new = stack_words(MOST_SLOTS), stack_words(MOST_SLOTS)
        for index in range(MOST_SLOTS):
            store(old, index, 0)
            store(new, index, 0)
        for index in range(list_length(frame)):
            store(old, index, data(frame, arg.slots, index))
            store(new, index, new_output(frame, index, int64(2), rows, dim, int64(item)))
        if failed(frame):
            return
        update(
            device, kind, rule, data(frame, arg.updates, 0),
            Slots(load(old, 0), load(old, 1), load(old, 2)),
            Slots(load(new, 0), load(new, 1), load(new, 2)),
            data(frame, arg.numbers, 0), rows * dim, error_record(device),
        )  # fmt: skip

    return update_row
