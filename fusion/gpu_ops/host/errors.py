"""Errors that kernels reported, see `ErrorRecord`, as those of the op's call."""

from __future__ import annotations

from typing import Any

from fusion.gpu_ops.layout.call import (
    BAD_DEFAULT,
    BAD_ID,
    BAD_KEY,
    BAD_RATE,
    BAD_ROW,
    BAD_SPLIT,
    REPEATED,
    UNSORTED_ROW,
)
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.frame import INVALID_ARGUMENT, fail, fail_column
from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import load, store


def teller(when: str) -> Any:
    """A jitted function (frame, trouble) that makes trouble of the call's error, if there is any.

    Args:
        when: the end of what is said.
    """
    bad_id = f": element %lld has id %lld, which is not in its table{when}"
    bad_default = f": the id of empty rows, %lld, is not in its table{when}"
    bad_row = f": entry %lld has row %lld, which is not in the batch{when}"
    unsorted = f": entry %lld has row %lld, less than the one before it{when}"
    repeated = f"shard %lld: distinct id %lld has row %lld, which another has, too{when}"
    bad_key = f": element %lld has id %lld, too large for the type of its keys{when}"
    bad_rate = f"rule ftrl: lr is not a positive scalar (numbers[0]){when}"
    bad_split = f": the row splits at %lld make no sense, there is %lld{when}"

    @jit
    def tell(frame: int, trouble: int) -> None:
        kind, place = load(trouble, ErrorRecord.error_code), load(trouble, ErrorRecord.column)
        element, number = load(trouble, ErrorRecord.element), load(trouble, ErrorRecord.value)
        if kind > 0:  # else it is still being written
            store(trouble, ErrorRecord.error_code, 0)
        if kind == BAD_ID:
            fail_column(frame, INVALID_ARGUMENT, bad_id, place, element, number)
        elif kind == BAD_DEFAULT:
            fail_column(frame, INVALID_ARGUMENT, bad_default, place, number)
        elif kind == BAD_ROW:
            fail_column(frame, INVALID_ARGUMENT, bad_row, place, element, number)
        elif kind == UNSORTED_ROW:
            fail_column(frame, INVALID_ARGUMENT, unsorted, place, element, number)
        elif kind == BAD_RATE:
            fail(frame, INVALID_ARGUMENT, bad_rate)
        elif kind == BAD_KEY:
            fail_column(frame, INVALID_ARGUMENT, bad_key, place, element, number)
        elif kind == REPEATED:
            fail(frame, INVALID_ARGUMENT, repeated, place, element, number)
        elif kind == BAD_SPLIT:
            fail_column(frame, INVALID_ARGUMENT, bad_split, place, element, number)

    return tell
