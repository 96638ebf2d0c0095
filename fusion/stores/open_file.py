"""Files that stay open while they are read, even if other files replace them at their paths."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OpenFile:
    """An open file.

    Attributes:
      name: what messages call it.
      descriptor: of the system.
    """

    def __init__(self, name: str | os.PathLike[str], descriptor: int | None = None) -> None:
        """Opens a file to be read.

        Args:
          name: its path.
          descriptor: an open file, which is closed with this object; None: it is opened.

        Raises:
          OSError: it cannot be opened.
        """
        self.name = os.fspath(name)
        if descriptor is None:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        self.descriptor = descriptor

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    @property
    def status(self) -> os.stat_result:
        """What the system knows of it."""
        return os.fstat(self.descriptor)

    def check_size(self, size: int) -> None:
        """Raises a `ValueError` if the file has another size, in bytes."""
        actual = self.status.st_size
        if actual != size:
            raise ValueError(f"{self.name}: has {actual} bytes, but {size} when it was opened")

    def read(self, offset: int, size: int) -> bytearray:
        """Some bytes.

        Raises:
          ValueError: the file ends before.
        """
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            count = os.preadv(self.descriptor, [rest], offset)
            if not count:
                raise ValueError(f"{self.name}: truncated while it was read")
            offset, rest = offset + count, rest[count:]
        return content

    def write(self, offset: int, content: Any) -> None:
        """Writes the bytes of an array."""
        rest = memoryview(content).cast("B")
        while rest:
            count = os.pwrite(self.descriptor, rest, offset)
            offset, rest = offset + count, rest[count:]

    def mapped(self, dtype: str) -> NDArray[Any]:
        """The content in memory, as an array that cannot be written.

        The system reads a page when it is touched, and no others around it: elements are read
        here and there.
        """
        size = self.status.st_size
        if not size:
            return np.empty(0, dtype)
        content = mmap.mmap(self.descriptor, size, access=mmap.ACCESS_READ)
        content.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(content, dtype, size // np.dtype(dtype).itemsize)
