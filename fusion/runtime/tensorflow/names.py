"""The names of columns in a kernel's state, for its messages.

In words: for each column where in the state its text is, in bytes; then the texts as C strings.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fusion.printable import printable

#: More bytes than this of a name would push the rest out of a message.
_LONGEST = 240


def name_words(names: Sequence[str], start: int) -> list[int]:
    """The words of names, to be the state's from word `start` on."""
    texts = [_text(name) for name in names]
    offsets, end = list[int](), 8 * (start + len(texts))
    for text in texts:
        offsets.append(end)
        end += len(text)
    content = b"".join(texts)
    content += bytes(-len(content) % 8)
    return [*offsets, *struct.unpack(f"<{len(content) // 8}q", content)]


def _text(name: str) -> bytes:
    """A name as it stands behind a column's number, in parentheses: a C string."""
    if not name:
        return b"\0"
    text = printable(name).encode()
    if len(text) > _LONGEST:
        half = _LONGEST // 2  # names differ at their ends, if not at their beginnings
        text = text[:half].decode(errors="ignore").encode() + b"..." + _tail(text, half)
    return b" (" + text + b")\0"


def _tail(text: bytes, count: int) -> bytes:
    return text[-count:].decode(errors="ignore").encode()
