"""Records that native code reads, with all that they lead to: who writes them need not know where.

They are in the memory of this process, or in the data of a library that is built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

#: A 64-bit word: an int, or a `Reference`.
Word = Any


class Reference(NamedTuple):
    """The address of what has a name in a library that is built, and so many bytes further."""

    name: str
    offset: int = 0


class Memory(Protocol):
    """Where records are."""

    def words(self, numbers: Sequence[Word]) -> Word:
        """The address of 64-bit words, at least one."""

    def bytes(self, content: bytes) -> Word:
        """The address of bytes, with a zero behind."""

    def text(self, content: str) -> Word:
        """The address of a C string."""


class LiveMemory:
    """Records in the memory of this process, kept as long as this is."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []

    def words(self, numbers: Sequence[Word]) -> int:
        """See `Memory`."""
        return self._add((ctypes.c_int64 * max(1, len(numbers)))(*numbers))

    def bytes(self, content: bytes) -> int:
        """See `Memory`."""
        return self._add(ctypes.create_string_buffer(content))

    def text(self, content: str) -> int:
        """See `Memory`."""
        return self.bytes(content.encode())

    def _add(self, array: Any) -> int:
        self._arrays.append(array)
        return ctypes.addressof(array)


def constant(word: Word) -> str:
    """A word as a constant in LLVM's textual IR."""
    if not isinstance(word, Reference):
        return str(int(word))
    address = f"ptrtoint (ptr @{word.name} to i64)"
    return f"add (i64 {address}, i64 {word.offset})" if word.offset else address
