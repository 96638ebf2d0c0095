"""The GPU kernels by themselves, without TensorFlow: are they right, and how fast are they?

Needs numba-cuda and torch or cupy for memory. Under Numba's CUDA simulator the memory is NumPy's,
and nothing is timed.
"""

from __future__ import annotations

import dataclasses
import datetime
import statistics
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_ROOT = Path(__file__).resolve().parents[1]
_POISON = 7e7
#: An output may differ from float64 by so much of its bag's sum of absolute values.
_TOLERANCE = 1e-5
_WARM_UP = 3


def prepare_package() -> None:
    """Makes the kernels importable where there is no TensorFlow, which `fusion` itself needs."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        package = types.ModuleType("fusion")
        package.__path__ = [str(_ROOT / "fusion")]
        sys.modules["fusion"] = package


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: the shape of its table, and how many ids a row has, least and most."""

    rows: int
    dim: int
    ids: tuple[int, int] = (1, 1)
    combiner: int = 0


@dataclasses.dataclass(frozen=True)
class Workload:
    """Columns that are computed side by side in one launch."""

    name: str
    batch: int
    columns: tuple[Column, ...]


def workloads(scale: float) -> Iterator[Workload]:
    """The workloads, with tables and batches of so much of their size."""

    def scaled(number: int) -> int:
        return max(int(number * scale), 8)

    for length in (1, 10, 50):
        for dim in (8, 16, 32, 64, 128):
            batch = min(1 << 17, (1 << 26) // (length * dim))
            column = Column(scaled((1 << 28) // dim), dim, (length, length))
            yield Workload(f"bag, {length} ids, dim {dim}", scaled(batch), (column,))
    for batch in (512, 4096):
        columns = (Column(scaled(100_000), 16, (0, 5), 1),) * 26
        yield Workload(f"multihot26, batch {batch}", scaled(batch), columns)
    wide = (Column(1000, 8),) * scaled(1000)
    yield Workload("wide1000, batch 256", scaled(256), wide)
    draw, mixed = np.random.default_rng(0), []
    for place in range(scaled(1000)):
        dim = int(draw.choice([4, 8, 16, 32, 64, 128]))
        most = int(draw.choice([10, 50, 100, 500]))
        mixed.append(Column(1024, dim) if place % 2 else Column(4096, dim, (0, scaled(most))))
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

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: int) -> None:
        """Launches a kernel of `fusion.gpu_ops.kernels.registry.KERNELS`, which is compiled once.

        It has the registers that it has in TensorFlow's ops, and like there nothing is optimized
        when it is linked.
        """
        from fusion.gpu_ops.kernels.registry import KERNELS
        from fusion.gpu_ops.language.device import SIMULATED

        if kernel not in self.kernels:
            made = KERNELS[kernel]
            options = {} if SIMULATED else {"max_registers": made.registers, "lto": False}
            self.kernels[kernel] = self.cuda.jit(**options)(made.make())
        self.kernels[kernel][blocks, threads](*arguments)

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
        """The median time of a call on the GPU."""
        times = []
        for turn in range(_WARM_UP + repeats):
            start, end = self.cuda.event(timing=True), self.cuda.event(timing=True)
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


@dataclasses.dataclass
class Prepared:
    """A workload in memory: launched by `launch`, its numbers checked by `check`."""

    workload: Workload
    memory: Memory
    tables: list[Any]
    ids: list[npt.NDArray[np.int64]]
    splits: list[npt.NDArray[np.int64]]
    held: list[Any]
    call: Any
    words: Any
    out: Any

    def launch(self) -> None:
        """Computes all columns in one launch."""
        from fusion.gpu_ops.layout.call import THREADS, TILES

        self.memory.launch("combine_float32", self.call.tiles(TILES), THREADS, self.call.base)

    def moved(self) -> int:
        """The least bytes that must be moved: distinct rows and ids once, the result once."""
        rows = sum(
            4 * column.dim * np.unique(ids).size
            for column, ids in zip(self.workload.columns, self.ids, strict=True)
        )
        lists = sum(one.nbytes for one in (*self.ids, *self.splits))
        return rows + lists + 4 * self.workload.batch * self.call.width

    def check(self, bags: int = 500) -> float:
        """The largest error of some bags, relative to float64, after computing them over poison.

        Of the first columns so many bags, of the others a few.

        Raises:
            RuntimeError: the kernel told of trouble, an element was not written, or is wrong.
        """
        out = self.memory.get(self.out)
        if not np.isfinite(out).all() or (out == np.float32(_POISON)).any():
            raise RuntimeError(f"{self.workload.name}: elements are not written")
        told = self.memory.get(self.words)[self.call.trouble : self.call.trouble + 4]
        if told[0]:
            raise RuntimeError(f"{self.workload.name}: trouble {told.tolist()}")
        worst, first = 0.0, 0
        rows = np.unique(np.linspace(0, self.workload.batch - 1, bags).astype(int))
        for place, column in enumerate(self.workload.columns):
            table = self.memory.get(self.tables[place])
            for row in rows[:: 1 if place < 40 else 20]:
                start, end = self.splits[place][row : row + 2]
                entries = table[self.ids[place][start:end]].astype(np.float64)
                wanted = entries.sum(0)
                size = np.abs(entries).sum(0) + 1e-30
                if column.combiner == 1 and end > start:
                    wanted, size = wanted / (end - start), size / (end - start)
                error = np.abs(out[row, first : first + column.dim] - wanted) / size
                worst = max(worst, float(error.max()))
            first += column.dim
        if worst > _TOLERANCE:
            raise RuntimeError(f"{self.workload.name}: off by {worst:.2g}")
        return worst


def prepare(workload: Workload, memory: Memory, seed: int) -> Prepared:
    """Draws tables and ids and puts them in memory."""
    from fusion.cpu_ops import column_words as words
    from fusion.gpu_ops import call as calls

    draw = np.random.default_rng(seed)
    tables, ids, splits, held, columns = [], [], [], [], []
    for column in workload.columns:
        table = memory.put(draw.standard_normal((column.rows, column.dim), np.float32))
        least, most = column.ids
        lengths = draw.integers(least, most + 1, workload.batch)
        ids.append(draw.integers(0, column.rows, int(lengths.sum())))
        splits.append(np.concatenate([[0], np.cumsum(lengths)]))
        tables.append(table)
        held.append((memory.put(ids[-1]), memory.put(splits[-1])))
        columns.append(
            calls.Column(
                words.ROW_SPLITS,
                memory.address(table),
                column.rows,
                column.dim,
                ids=memory.address(held[-1][0]),
                id_count=ids[-1].size,
                rows=memory.address(held[-1][1]),
                attrs={words.COMBINER: column.combiner, words.PRUNE: 1},
            )
        )
    width = sum(column.dim for column in workload.columns)
    out = memory.put(np.full((workload.batch, width), _POISON, np.float32))
    space = list[Any]()

    def address(size: int) -> int:
        space.append(memory.put(np.zeros(size // 8, np.int64)))
        return memory.address(space[0])

    call = calls.prepare("float32", workload.batch, columns, memory.address(out), address)
    memory.write(space[0], call.words)
    return Prepared(workload, memory, tables, ids, splits, held, call, space[0], out)


def copy_bandwidth(memory: Memory, repeats: int, size: int = 1 << 30) -> float:
    """Bytes per second, read and written, of a copy on the GPU."""
    source = memory.put(np.zeros(size // 4, np.float32))
    target = memory.put(np.zeros(size // 4, np.float32))

    def copy() -> None:
        if memory.torch is not None:
            target.copy_(source)
        else:
            target[...] = source

    return 2 * size / (memory.milliseconds(copy, repeats) / 1e3)


def device() -> dict[str, Any]:
    """The GPU, its driver, and the versions of what was used."""
    from importlib.metadata import version

    from numba import cuda

    from fusion.gpu_ops.language.device import SIMULATED

    told = {"numba": version("numba"), "numba-cuda": version("numba-cuda")}
    if SIMULATED:
        return {"device": "Numba's CUDA simulator", **told}
    name = cuda.get_current_device().name
    return {
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "driver": _driver_version(),
        "cuda": ".".join(map(str, cuda.driver.driver.get_version())),
        **told,
    }


def _driver_version() -> str:
    """The version of NVIDIA's driver, "" where its own tool is missing."""
    try:
        order = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(order, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.split("\n")[0].strip()


def measure(
    scale: float,
    repeats: int,
    seed: int,
    names: Sequence[str] = (),
    keep: Callable[[dict[str, Any]], None] = lambda numbers: None,
) -> dict[str, Any]:
    """Checks and measures the workloads whose names start with one of `names`, by default all.

    Args:
        scale: of tables and batches.
        repeats: of what is timed.
        seed: of tables and ids.
        names: see above.
        keep: is given what was found so far behind each workload.

    Returns:
        What goes into `gpu.json`: the device, the bandwidth of a copy, the errors of the steps, and
        for each workload the error, the milliseconds, torch's, FBGEMM's and TensorFlow's, and the
        share of the bandwidth.
    """
    from benchmarks import gpu_rivals, gpu_steps, gpu_tensorflow
    from fusion.gpu_ops.language.device import SIMULATED

    memory = Memory()
    rows = gpu_steps.check(memory, max(int(1_000_000 * scale), 40), seed)
    copied = None if SIMULATED else copy_bandwidth(memory, repeats)
    numbers = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **device(),
        "scale": scale,
        "copy_bytes_per_second": copied,
        "workloads": rows,
    }
    for workload in workloads(scale):
        if names and not workload.name.startswith(tuple(names)):
            continue
        prepared = prepare(workload, memory, seed)
        row: dict[str, Any] = {"name": workload.name, "columns": len(workload.columns)}
        lists = (one for pair in prepared.held for one in pair)
        with memory.allowing([prepared.words, prepared.out, *prepared.tables, *lists]):
            prepared.launch()
        row["error"] = prepared.check()
        if SIMULATED:
            rows.append(row)
            continue
        row["milliseconds"] = memory.milliseconds(prepared.launch, repeats)
        row["torch_milliseconds"] = gpu_rivals.torch_milliseconds(prepared, repeats)
        row["fbgemm_milliseconds"] = gpu_rivals.fbgemm_milliseconds(prepared, repeats)
        row |= gpu_tensorflow.compared(workload, gpu_tensorflow.gpu(), seed, repeats)
        row["bytes"] = prepared.moved()
        assert copied is not None
        row["share"] = row["bytes"] / (row["milliseconds"] / 1e3) / copied
        rows.append(row)
        keep(numbers)
    return numbers


def table(numbers: dict[str, Any]) -> str:
    """The numbers as a table in Markdown."""
    copied = numbers["copy_bytes_per_second"]
    driver = f", driver {numbers['driver']}" if numbers.get("driver") else ""
    speed = f", copies {copied / 1e9:,.0f} GB/s" if copied else ""
    lines = [
        f"{numbers['date']}, {numbers['device']}{driver}{speed}. Errors are relative to float64; "
        "the share is that of the copy's bandwidth, distinct rows counted once. TensorFlow's times "
        "are those of calls, by stock's ops and by the fused op.",
        "",
        "| workload | error | ms | share | torch ms | FBGEMM ms | stock TensorFlow ms | fused ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = "milliseconds", "torch_milliseconds", "fbgemm_milliseconds", "stock_ms", "fused_ms"
    for row in numbers["workloads"]:
        own, *others = (f"{row[name]:.3f}" if row.get(name) else "" for name in names)
        share = f"{row['share']:.0%}" if own else ""
        cells = (row["name"], f"{row['error']:.1e}", own, share, *others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
