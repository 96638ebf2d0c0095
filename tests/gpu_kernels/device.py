"""A GPU as the steps of `fusion.gpu_ops.steps` have it, for arrays of NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tests.gpu_kernels.references import Doubles, doubles, kept, numpy_dtype

if TYPE_CHECKING:
    from benchmarks.gpu.memory import Memory
    from fusion.gpu_ops.layout.arguments import Argument


class Gpu:
    """A `fusion.gpu_ops.steps.device.Device`."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.held: dict[int, Any] = {}

    def put(self, array: npt.NDArray[Any]) -> int:
        """The address of a copy of an array."""
        space = np.zeros(-(-max(array.nbytes, 1) // 16) * 16, np.uint8)
        space[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        made = self.memory.put(space)
        address = self.memory.address(made)
        self.held[address] = made
        return address

    def put_words(self, words: Sequence[int]) -> int:
        """The address of words, int64."""
        return self.put(np.array(words, np.int64))

    def drawn(
        self, draw: np.random.Generator, shape: tuple[int, ...], stored: str
    ) -> tuple[int, Doubles]:
        """The address of random elements of dtype `stored`, and what they are."""
        elements = kept(draw.standard_normal(shape), stored)
        return self.put(elements), doubles(elements)

    def write(self, address: int, words: npt.NDArray[np.int64]) -> None:
        """Copies words to an address that `put` or `reserve` gave."""
        self.memory.write(self.held[address], words)

    def get(self, address: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        """The first elements at an address that `put` or `reserve` gave."""
        flat = self.memory.get(self.held[address])
        return flat[: count * np.dtype(dtype).itemsize].view(dtype)

    def numbers(self, address: int, stored: str, shape: tuple[int, ...]) -> Doubles:
        """The elements of dtype `stored` at an address that `put` or `reserve` gave."""
        found = self.get(address, numpy_dtype(stored), int(np.prod(shape)))
        return doubles(found).reshape(shape)

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """See `steps.device.Device`."""
        with self.memory.allowing(self.held.values()):
            self.memory.launch(kernel, blocks, threads, *arguments)

    def reserve(self, size: int) -> int:
        """See `steps.device.Device`; poisoned."""
        return self.filled(size, 0x5A)

    def filled(self, size: int, byte: int) -> int:
        """See `steps.device.Device`."""
        return self.put(np.full(size, byte, np.uint8))

    def fill(self, address: int, size: int, byte: int) -> None:
        """See `steps.device.Device`; from where `reserve` began."""
        content = self.memory.get(self.held[address]).copy()
        content[:size] = byte
        self.memory.write(self.held[address], content)

    def words(self, address: int, count: int) -> npt.NDArray[Any]:
        """See `steps.device.Device`."""
        for start, array in self.held.items():
            if start <= address < start + array.nbytes:
                content, at = self.memory.get(array), address - start
                return content[at : at + 8 * count].view(np.int64)
        raise KeyError(address)

    def check_errors(self, what: str, address: int) -> None:
        """Raises RuntimeError if an `ErrorRecord`, zeros before, has an error."""
        record = self.words(address, 4).tolist()
        if record[0]:
            raise RuntimeError(f"{what}: error {record}")
