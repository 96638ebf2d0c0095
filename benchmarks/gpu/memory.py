"""Memory of a GPU, and the workloads that are measured on it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.lookups.workloads import Column

if TYPE_CHECKING:
    from fusion.gpu_ops.layout.arguments import Argument

_WARM_UP = 3
#: More than the caches of any GPU hold: what is written before each call that is timed.
_CACHES = 1 << 29


@dataclasses.dataclass(frozen=True)
class Workload:
    """Columns that are computed side by side in one launch."""

    name: str
    batch: int
    columns: tuple[Column, ...]

    @property
    def elements(self) -> int:
        """Those of all tables."""
        return sum(column.rows * column.dim for column in self.columns)


def workloads(scale: float) -> Iterator[Workload]:
    """The workloads, with tables and batches of so much of their size."""

    def scaled(number: int) -> int:
        return max(int(number * scale), 8)

    for length in (1, 10, 50):
        for dim in (8, 16, 32, 64, 128):
            batch = min(1 << 17, (1 << 28) // (length * dim))
            column = Column(scaled((1 << 30) // dim), dim, ids=(length, length), combiner="sum")
            yield Workload(f"bag, {length} ids, dim {dim}", scaled(batch), (column,))
    for batch in (512, 4096):
        columns = (Column(scaled(100_000), 16, ids=(0, 5)),) * 26
        yield Workload(f"multihot26, batch {batch}", scaled(batch), columns)
    wide = (Column(1000, 8, combiner="sum"),) * scaled(1000)
    yield Workload("wide1000, batch 256", scaled(256), wide)
    draw, mixed = np.random.default_rng(0), []
    for index in range(scaled(1000)):
        dim = int(draw.choice([4, 8, 16, 32, 64, 128]))
        most = int(draw.choice([10, 50, 100, 500]))
        rows, ids = (1024, (1, 1)) if index % 2 else (4096, (0, scaled(most)))
        mixed.append(Column(rows, dim, ids=ids, combiner="sum"))
    yield Workload("recflex-a, batch 242", scaled(242), tuple(mixed))


class Memory:
    """Arrays on the GPU, by torch or cupy; in the simulator NumPy's."""

    def __init__(self) -> None:
        from numba import cuda

        from fusion.gpu_ops.language.device import SIMULATED

        self.cuda, self.torch, self.cupy = cuda, None, None
        #: The kernels that were launched, by name.
        self.kernels: dict[str, Any] = {}
        if SIMULATED:
            return
        try:
            import torch

            self.torch = torch if torch.cuda.is_available() else None
        except ImportError:
            pass
        if self.torch is None:
            import cupy

            self.cupy = cupy

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Launches a kernel of `fusion.gpu_ops.kernels.registry.KERNELS`, which is compiled once.

        It has the registers that it has in TensorFlow's ops, and like there nothing is optimized
        when it is linked.
        """
        from fusion.gpu_ops.kernels.registry import KERNELS
        from fusion.gpu_ops.language.device import SIMULATED

        made = KERNELS[kernel]
        if kernel not in self.kernels:
            options = {} if SIMULATED else {"max_registers": made.registers, "lto": False}
            self.kernels[kernel] = self.cuda.jit(**options)(made.make())
        # Some versions of numba-cuda refuse NumPy's integers.
        self.kernels[kernel][int(blocks), int(threads)](*made.grouped(arguments))

    def put(self, array: npt.NDArray[Any]) -> Any:
        """A copy of an array on the GPU."""
        if self.torch is not None:
            return self.torch.from_numpy(np.ascontiguousarray(array)).cuda()
        return self.cupy.asarray(array) if self.cupy is not None else aligned(array)

    def address(self, array: Any) -> int:
        """Where an array on the GPU lies."""
        if self.torch is not None:
            return int(array.data_ptr())
        return int(array.data.ptr if self.cupy is not None else array.ctypes.data)

    def write(self, target: Any, values: npt.NDArray[Any]) -> None:
        """Copies values to the first bytes of an array on the GPU."""
        content = self.get(target).reshape(-1).view(np.uint8).copy()
        content[: values.nbytes] = values.reshape(-1).view(np.uint8)
        content = content.view(self.get(target).dtype)
        if self.torch is not None:
            target.view(-1).copy_(self.torch.from_numpy(content))
        elif self.cupy is not None:
            target.reshape(-1)[:] = self.cupy.asarray(content)
        else:
            target.reshape(-1)[:] = content

    def allowing(self, arrays: Iterable[Any]) -> AbstractContextManager[None]:
        """Lets kernels use arrays, and nothing else, which only the simulator can see to."""
        from fusion.gpu_ops.language.device import SIMULATED, language

        return language.allow(*arrays) if SIMULATED else nullcontext()

    def get(self, array: Any) -> npt.NDArray[Any]:
        """A copy of an array on the GPU."""
        if self.torch is not None:
            return np.asarray(array.cpu().numpy())
        return np.asarray(array.get() if self.cupy is not None else array)

    def milliseconds(self, call: Callable[[], object], repeats: int) -> float:
        """The median time of a call on the GPU whose caches have nothing of its data.

        Until the host has launched it the GPU is busy with that.
        """
        times, other = [], self.put(np.ones(_CACHES // 4, np.float32))
        for turn in range(_WARM_UP + repeats):
            start, end = self.cuda.event(timing=True), self.cuda.event(timing=True)
            other *= -1
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= _WARM_UP:
                times.append(self.cuda.event_elapsed_time(start, end))
        return statistics.median(times)


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of an array that starts where a multiple of 64 bytes does."""
    space = np.zeros(array.nbytes + 64, np.uint8)
    skip = -space.ctypes.data % 64
    copy = space[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def copy_bandwidth(memory: Memory, repeats: int, size: int = 1 << 30) -> float:
    """Bytes per second, read and written, of a copy on the GPU."""
    elements = np.random.default_rng().random(size // 4, np.float32)
    source, target = memory.put(elements), memory.put(elements)

    def copy() -> None:
        if memory.torch is not None:
            target.copy_(source)
        else:
            target[...] = source

    return 2 * size / (memory.milliseconds(copy, repeats) / 1e3)
