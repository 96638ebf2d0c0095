"""Records that native code reads, with all that they lead to: who writes them need not know where.

They are in the memory of this process, or in the data of a library that is built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

#: A 64-bit word: an int, or a `Reference`.
Word = Any


class Reference(str):
    """The address of what has this name in a library that is built."""


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
        self._kept: list[Any] = []

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
        self._kept.append(array)
        return ctypes.addressof(array)


def constant(word: Word) -> str:
    """A word as a constant in LLVM's textual IR."""
    return f"ptrtoint (ptr @{word} to i64)" if isinstance(word, Reference) else str(int(word))
