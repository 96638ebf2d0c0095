"""How kernels report errors: the first error wins, see `ErrorRecord`."""

from __future__ import annotations

from fusion.gpu_ops.language.device import compare_and_swap, jit, publish
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.jit import int64


@jit
def report_error(
    record: ErrorRecord, error_code: int, column: int, element: int, value: int
) -> None:
    """Reports an error of an element in the `ErrorRecord` at an address, if it is the first."""
    if (
        compare_and_swap(record, int64(ErrorRecord.error_code), int64(0), int64(call_of.WRITING))
        == 0
    ):
        record.column = column
        record.element = element
        record.value = value
        publish()
        record.error_code = error_code


@jit
def report_in_call(
    call: CombineCall, error_code: int, column: int, element: int, value: int
) -> None:
    """As `report_error`, of a `CombineCall`."""
    report_error(call.errors, error_code, column, element, value)
