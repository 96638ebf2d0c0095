"""How kernels report errors: the first error wins, see `ErrorRecord`."""

from __future__ import annotations

from fusion.gpu_ops.language.device import compare_and_swap, jit, load, publish, store
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.cuda.layout import ErrorRecord
from fusion.runtime.native.jit import int64


@jit
def tell_at(trouble: int, kind: int, place: int, element: int, number: int) -> None:
    """Tells of trouble with an element of column `place`, in the `ErrorRecord` at an address."""
    if (
        compare_and_swap(trouble, int64(ErrorRecord.error_code), int64(0), int64(call_of.WRITING))
        == 0
    ):
        store(trouble, ErrorRecord.column, place)
        store(trouble, ErrorRecord.element, element)
        store(trouble, ErrorRecord.value, number)
        publish()
        store(trouble, ErrorRecord.error_code, kind)


@jit
def tell(call: int, kind: int, place: int, element: int, number: int) -> None:
    """Tells of trouble in a call that combines columns."""
    tell_at(load(call, CombineCall.errors), kind, place, element, number)
