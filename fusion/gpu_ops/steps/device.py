"""Who launches kernels and has memory for them."""

from __future__ import annotations

from typing import Any, Protocol

from fusion.gpu_ops.layout.arguments import Argument
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS

#: Threads of a block of kernels that have one for each element.
THREADS = 128
#: With all bits set a word is -1, which is `unique.EMPTY`.
ALL_BITS = 0xFF


class Device(Protocol):
    """A GPU, its stream and its memory; addresses are those of its memory."""

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Launches a kernel of `kernels.KERNELS` behind those before."""

    def reserve(self, size: int) -> int:
        """The address of so many new bytes, of any value; a multiple of 16."""

    def filled(self, size: int, byte: int) -> int:
        """The address of so many new bytes, all of one value; a multiple of 16."""

    def fill(self, address: int, size: int, byte: int) -> None:
        """Sets so many bytes to one value."""

    def words(self, address: int, count: int) -> Any:
        """Int64 [count], those at an address after all that was launched."""


def launch_for(
    device: Device, kernel: str, dtype_code: int, blocks: int, threads: int, *arguments: Argument
) -> None:
    """Launches the kernel of a dtype of floats: its name is `kernel`, and that of the dtype."""
    (stored,) = (name for name in FLOATS if DTYPES[name].code == dtype_code)
    device.launch(f"{kernel}_{stored}", blocks, threads, *arguments)


def blocks_of(threads: int) -> int:
    """The blocks of a launch with at least one thread for each element."""
    return max((threads + THREADS - 1) // THREADS, 1)
