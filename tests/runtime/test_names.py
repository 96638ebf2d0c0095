"""Names in a kernel's state."""

from __future__ import annotations

import struct

import pytest

from fusion.runtime.tensorflow.names import name_words


def texts(names: list[str], start: int) -> list[bytes]:
    """The C strings that the words of names lead to."""
    words = name_words(names, start)
    memory = bytes(8 * start) + struct.pack(f"<{len(words)}q", *words)
    return [memory[offset:].partition(b"\0")[0] for offset in words[: len(names)]]


@pytest.mark.parametrize("start", [5, 6, 100])
def test_each_column_has_a_string(start):
    assert texts(["a", "", "ab/c of table d", "é"], start) == [
        b" (a)",
        b"",
        b" (ab/c of table d)",
        " (é)".encode(),
    ]
    assert name_words([], start) == []


def test_no_name_ends_early_or_has_half_a_letter():
    (found,) = texts(["a\0b" + "é" * 500], 5)
    assert found.decode().startswith(r" (a\x00bé")
    assert len(found) < 300
