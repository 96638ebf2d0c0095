"""The attr `code` of FusedEmbeddingUpdate, read."""

from __future__ import annotations

import struct
from typing import NamedTuple

from fusion.ops.updates.cpu_kernels.layout import CodeCounts, CodeWords
from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower


class Lowered(NamedTuple):
    """A program that was lowered.

    Attributes:
      is_sweep, needs_rows, may_skip: see `CodeWords`.
      with_entries, without: `CodeCounts` of blocks with entries, and of those without.
      words: of the instructions of both, see `Instruction`.
    """

    is_sweep: bool
    needs_rows: bool
    may_skip: bool
    with_entries: list[int]
    without: list[int]
    words: list[int]


def words_of(code: bytes) -> list[int]:
    """The words of an attr."""
    return [*struct.unpack(f"<{len(code) // 4}i", code)]


def code_of(words: list[int]) -> bytes:
    """The attr of these words."""
    return struct.pack(f"<{len(words)}i", *words)


def lowered(text: str, inputs: Inputs) -> Lowered:
    """What a program is lowered to."""
    words = words_of(lower(text, inputs))
    return Lowered(
        is_sweep=bool(words[CodeWords.is_sweep]),
        needs_rows=bool(words[CodeWords.needs_rows]),
        may_skip=bool(words[CodeWords.may_skip]),
        with_entries=words[CodeWords.with_entries :][: CodeCounts.SIZE],
        without=words[CodeWords.without :][: CodeCounts.SIZE],
        words=words[CodeWords.SIZE :],
    )
