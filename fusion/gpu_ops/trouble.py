"""How kernels tell of trouble: the first that one finds is kept, see `call_words`."""

from __future__ import annotations

from fusion.gpu_ops import call_words as call_of
from fusion.gpu_ops.device import compare_and_swap, jit, load, store


@jit
def tell(call: int, kind: int, place: int, element: int, number: int) -> None:
    """Tells of trouble with an element of column `place`."""
    trouble = load(call, call_of.TROUBLE)
    if compare_and_swap(trouble, call_of.KIND, 0, kind) == 0:
        store(trouble, call_of.COLUMN, place)
        store(trouble, call_of.ELEMENT, element)
        store(trouble, call_of.NUMBER, number)
