"""The manifest of a library of ops, a section of its file."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, dataclass

#: The section's name.
SECTION = ".fusion_manifest"

#: The machine in an ELF header.
_X86_64 = b"\x3e\0"


@dataclass(frozen=True)
class Manifest:
    """The manifest of a library of ops.

    Attributes:
        fusion: the version of fusion that built it.
        ops: the names of the ops.
        cpus: the names of the kernels for each level of processors.
    """

    fusion: str
    ops: list[str]
    cpus: dict[str, list[str]]

    def encoded(self) -> str:
        """Returns the content of the section."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Reads the manifest of a library of ops, without running code of the library.

    Args:
        path: a library that `build_ops` wrote.

    Raises:
        ValueError: the file is not a library of ops, or is damaged.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        fields = json.loads(_section(content).decode())
        return Manifest(fields["fusion"], fields["ops"], fields["cpus"])
    except (struct.error, KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(
            f"{os.fspath(path)}: no library of fusion ops, or a damaged one"
        ) from error


def _section(content: bytes) -> bytes:
    """The content of the section in a 64-bit ELF file; the format is that of the System V ABI."""
    if content[:5] != b"\x7fELF\x02" or content[18:20] != _X86_64:
        raise ValueError("no ELF file for x86-64")
    (headers,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", content, 0x3A)
    if headers + size * count > len(content):
        raise ValueError("a truncated file")
    (names,) = struct.unpack_from("<24xQ", content, headers + size * names_index)
    for index in range(count):
        name, start, length = struct.unpack_from("<I20xQQ", content, headers + size * index)
        end = content.index(b"\0", names + name)
        if content[names + name : end] == SECTION.encode():
            if start + length > len(content):
                raise ValueError("a truncated file")
            return content[start : start + length]
    raise ValueError("no such section")
