"""Numbers of any type as words, which is how kernels take them."""

from __future__ import annotations

from typing import Any

from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import load, stack_words, store, store_as


def bits_of(dtype: type) -> Any:
    """A jitted function (number of this type) -> its bits, as a word."""

    @jit
    def bits(number: Any) -> int:
        place = stack_words(1)
        store(place, 0, 0)
        store_as(place, 0, dtype(number), dtype)
        return load(place, 0)

    return bits
