"""Numbers of any type as words, as kernels take them."""

from __future__ import annotations

from typing import Any

from fusion.runtime.native.jit import jit
from fusion.runtime.native.memory import load, store, store_as
from fusion.runtime.native.pointers import stack_words


def bits_of(dtype: type) -> Any:
    """A jitted function (number of this type) -> its bits, as a word."""

    @jit
    def bits(number: Any) -> int:
        word = stack_words(1)
        store(word, 0, 0)
        store_as(word, 0, dtype(number), dtype)
        return load(word, 0)

    return bits
