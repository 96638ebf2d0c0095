"""Errors that kernels reported, see `ErrorRecord`, as those of the op's call."""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.layout.call import (
    BAD_DEFAULT,
    BAD_ID,
    BAD_KEY,
    BAD_ROW,
    BAD_SPLIT,
    REPEATED,
    UNSORTED_ROW,
)
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native import op
from fusion.runtime.native.jit import jit


def error_reporter(when: str) -> Any:
    """A jitted function (frame, record) that makes the record's error, if any, that of the call.

    Args:
        when: the end of what is said.
    """
    bad_id = f": element %lld has id %lld, which is not in its table{when}"
    bad_default = f": the id of empty rows, %lld, is not in its table{when}"
    bad_row = f": entry %lld has row %lld, which is not in the batch{when}"
    unsorted = f": entry %lld has row %lld, less than the one before it{when}"
    repeated = f"shard %lld: distinct id %lld has row %lld, which another has, too{when}"
    bad_key = f": element %lld has id %lld, too large for the type of its keys{when}"
    bad_split = f": the row splits at %lld make no sense, there is %lld{when}"

    @jit
    def report(frame: int, record: ErrorRecord) -> None:
        code, column = record.error_code, record.column
        element, value = record.element, record.value
        if code > 0:  # else it is still being written
            record.error_code = 0
        if code == BAD_ID:
            op.fail_column(frame, op.INVALID_ARGUMENT, bad_id, column, element, value)
        elif code == BAD_DEFAULT:
            op.fail_column(frame, op.INVALID_ARGUMENT, bad_default, column, value)
        elif code == BAD_ROW:
            op.fail_column(frame, op.INVALID_ARGUMENT, bad_row, column, element, value)
        elif code == UNSORTED_ROW:
            op.fail_column(frame, op.INVALID_ARGUMENT, unsorted, column, element, value)
        elif code == BAD_KEY:
            op.fail_column(frame, op.INVALID_ARGUMENT, bad_key, column, element, value)
        elif code == REPEATED:
            op.fail(frame, op.INVALID_ARGUMENT, repeated, column, element, value)
        elif code == BAD_SPLIT:
            op.fail_column(frame, op.INVALID_ARGUMENT, bad_split, column, element, value)

    return report
