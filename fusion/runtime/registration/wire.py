"""The wire format of protocol buffers in compiled code, as far as TensorFlow's own bytes need it.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.text import byte

#: The bit of a byte of a varint that says that another one follows.
_MORE = 0x80


@jit
def varint(content: int, at: Words) -> int:
    """The varint at the place that a word has, which is moved behind it."""
    number, shift = int64(0), int64(0)
    while shift < 64:
        value = byte(content + at[0])
        at[0] = at[0] + 1
        number |= (value & (_MORE - 1)) << shift
        shift += 7
        if value < _MORE:
            return number
    return number
