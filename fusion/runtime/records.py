"""Memory for records that native code reads, and for what they point to.

It is that of this process, or the data section of a library that is being built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

#: A 64-bit word: an int, or a `Reference`.
Word = Any


class Reference(NamedTuple):
    """The address of a symbol in a library that is being built, plus `offset` bytes."""

    name: str
    offset: int = 0


class Memory(Protocol):
    """Memory to write records to."""

    def words(self, numbers: Sequence[Word]) -> Word:
        """Writes 64-bit words, at least one; returns their address."""

    def bytes(self, content: bytes) -> Word:
        """Writes bytes and a zero; returns their address."""

    def text(self, content: str) -> Word:
        """Writes a C string; returns its address."""


class LiveMemory:
    """Memory of this process; it is freed with this object."""

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
