"""Names that a shared library exports, found without loading or reading all of it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM


def exported_name(path: Path, part: bytes) -> str | None:
    """Returns the first exported name with `part` in it, or None.

    For names that are not known exactly, because they are mangled C++.

    Args:
        path: a 64-bit ELF file.
        part: any part of the name.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        for start, end in _name_tables(elf):
            if (found := elf.find(part, start, end)) >= 0:
                first, last = elf.rfind(b"\0", start, found) + 1, elf.find(b"\0", found)
                return elf[first:last].decode()
    return None


def _name_tables(elf: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yields where the names of dynamic symbols are, each between zero bytes.

    TensorFlow's library is a gigabyte, of which these are a few percent.
    """
    headers = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    for index in range(headers, headers + size * count, size):
        kind, names = struct.unpack_from("<4xI32xI", elf, index)
        if kind == _DYNAMIC_SYMBOLS:
            start, length = struct.unpack_from("<24xQQ", elf, headers + size * names)
            yield start, start + length
