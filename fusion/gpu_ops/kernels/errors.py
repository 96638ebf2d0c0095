"""How kernels tell of trouble: the first that one finds is kept, see `call_words`."""

from __future__ import annotations

from fusion.gpu_ops.language.device import compare_and_swap, jit, load, publish, store
from fusion.gpu_ops.layout import call as call_of
from fusion.runtime.native.jit import int64


@jit
def tell_at(trouble: int, kind: int, place: int, element: int, number: int) -> None:
    """Tells of trouble with an element of column `place`, in the words at an address."""
    if compare_and_swap(trouble, int64(call_of.KIND), int64(0), int64(call_of.WRITING)) == 0:
        store(trouble, call_of.COLUMN, place)
        store(trouble, call_of.ELEMENT, element)
        store(trouble, call_of.NUMBER, number)
        publish()
        store(trouble, call_of.KIND, kind)


@jit
def tell(call: int, kind: int, place: int, element: int, number: int) -> None:
    """Tells of trouble in the words of a call that combines columns."""
    tell_at(load(call, call_of.TROUBLE), kind, place, element, number)
