"""The kernels that take several launches, on a GPU: checked against NumPy, and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks import gpu_training

if TYPE_CHECKING:
    from benchmarks.gpu import Memory

#: Gradients may differ from float64 by so much of the sum of absolute values.
_TOLERANCE = 1e-5


class Gpu:
    """A `fusion.gpu_ops.steps.device.Device`."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.held: dict[int, Any] = {}
        self.kernels: dict[str, Any] = {}

    def put(self, array: npt.NDArray[Any]) -> int:
        """The address of a copy of an array."""
        made = self.memory.put(array)
        address = self.memory.address(made)
        self.held[address] = made
        return address

    def get(self, address: int, dtype: Any, count: int) -> npt.NDArray[Any]:
        """The first elements at an address that `put` or `room` gave."""
        flat = self.memory.get(self.held[address]).reshape(-1).view(np.uint8)
        return flat.view(dtype)[:count]

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: int) -> None:
        """See `steps.device.Device`."""
        from fusion.gpu_ops.kernels import KERNELS

        if kernel not in self.kernels:
            self.kernels[kernel] = self.memory.cuda.jit(KERNELS[kernel].make())
        with self.memory.allowing(self.held.values()):
            self.kernels[kernel][blocks, threads](*map(int, arguments))

    def room(self, size: int) -> int:
        """See `steps.device.Device`; poisoned."""
        return self.filled(size, 0x5A)

    def filled(self, size: int, byte: int) -> int:
        """See `steps.device.Device`."""
        return self.put(np.full(-(-max(size, 8) // 16) * 16, byte, np.uint8))

    def fill(self, address: int, size: int, byte: int) -> None:
        """See `steps.device.Device`; from where `room` began."""
        content = self.memory.get(self.held[address]).copy()
        content.reshape(-1).view(np.uint8)[:size] = byte
        self.memory.write(self.held[address], content)

    def words(self, address: int, count: int) -> npt.NDArray[Any]:
        """See `steps.device.Device`."""
        for start, array in self.held.items():
            if start <= address < start + array.nbytes:
                content, at = self.memory.get(array).reshape(-1).view(np.uint8), address - start
                return content[at : at + 8 * count].view(np.int64)
        raise KeyError(address)


def check(memory: Memory, count: int, seed: int) -> list[dict[str, Any]]:
    """Checks each step on `count` random elements.

    Returns:
        Rows for `gpu.json`.

    Raises:
        RuntimeError: a result is wrong.
    """
    steps: dict[str, Callable[[Gpu, int, np.random.Generator], float]] = {
        "prefix sums": _prefix_sums,
        "stable sort": _stable_order,
        "distinct ids": _unique,
        "prune and fill": _prune,
        "gradient": _gradient,
        "columns before gathers": gpu_training.columns,
        "row updates": gpu_training.row_update,
    }
    rows = []
    for name, step in steps.items():
        error = step(Gpu(memory), count, np.random.default_rng(seed))
        rows.append({"name": f"{name}, {count} elements", "columns": 1, "error": error})
    return rows


def _same(what: str, mine: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    if not np.array_equal(mine, wanted):
        raise RuntimeError(f"{what}: wrong")


def _prefix_sums(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.gpu_ops.steps.sums import prefix_sums

    counts, total = draw.integers(0, 9, count).astype(np.int32), gpu.room(8)
    places = prefix_sums(gpu, gpu.put(counts), count, total)
    _same("prefix sums", gpu.get(places, np.int64, count), np.cumsum(counts) - counts)
    _same("prefix sums", gpu.words(total, 1), np.array([counts.sum()]))
    return 0.0


def _stable_order(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.gpu_ops.steps.sums import stable_order

    most = 3 * count
    keys = draw.integers(0, most, count, endpoint=True).astype(np.int32)
    order = stable_order(gpu, gpu.put(keys), count, most)
    _same("stable sort", gpu.get(order, np.int32, count), np.argsort(keys, kind="stable"))
    return 0.0


def _unique(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.cpu_ops.column_words import INT64
    from fusion.gpu_ops.steps.unique import find_firsts, number_ids

    ids = (count * draw.random(count) ** 3).astype(np.int64)
    address = gpu.put(ids)
    found = find_firsts(gpu, address, INT64, count)
    _, firsts = np.unique(ids, return_index=True)
    keys = ids[np.sort(firsts)]
    _same("distinct ids", gpu.words(found.total, 1), np.array([keys.size]))
    outs = gpu.room(keys.nbytes), gpu.room(4 * count), gpu.room(4 * keys.size)
    number_ids(gpu, address, INT64, count, found, keys.size, *outs)
    _same("distinct ids", gpu.get(outs[0], np.int64, keys.size), keys)
    _same("distinct ids", keys[gpu.get(outs[1], np.int32, count)], ids)
    _same("distinct ids", gpu.get(outs[2], np.int32, keys.size).sum(), np.array(count))
    return 0.0


def _prune(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.cpu_ops.column_words import INT64
    from fusion.gpu_ops.steps.prune import Entries, fill, mark, put

    batch = count // 2 + 1
    ids = draw.integers(-2, 50, count)
    rows = np.sort(draw.integers(0, batch, count))
    indices = np.stack([rows, np.arange(count)], 1)
    trouble = gpu.put(np.zeros(4, np.int64))
    given = Entries(gpu.put(ids), INT64, count, gpu.put(indices), batch, 0, 0, 0)
    found = mark(gpu, given, 0, 0, trouble)
    total, first = int(gpu.words(found.totals, 2).sum()), int(gpu.words(found.totals, 1)[0])
    outs = gpu.room(8 * total), gpu.room(16 * total), 0
    put(gpu, given, found, *outs)
    fill(gpu, given, found, first, 7, 0, *outs)
    kept = ids >= 0
    empty = np.setdiff1d(np.arange(batch), rows[kept])
    wanted = np.concatenate([ids[kept], np.full(empty.size, 7)])
    fillers = np.stack([empty, np.zeros_like(empty)], 1)
    _same("prune", np.array(total), np.array(wanted.size))
    _same("prune", gpu.get(outs[0], np.int64, wanted.size), wanted)
    told = gpu.get(outs[1], np.int64, 2 * wanted.size).reshape(-1, 2)
    _same("prune", told, np.concatenate([indices[kept], fillers]))
    return 0.0


def _gradient(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.gpu_ops import call as calls
    from fusion.gpu_ops import call_words as words
    from fusion.gpu_ops.steps.gradient import GradEntries, order_entries
    from fusion.gpu_ops.steps.sums import numbers

    dim, batch, most = 16, count // 4 + 1, count // 3 + 1
    lengths = np.bincount(draw.integers(0, batch, count), minlength=batch)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    places = (most * draw.random(count) ** 2).astype(np.int32)
    top = draw.standard_normal((batch, dim), np.float32)
    out = gpu.put(np.full((most, dim), 7e7, np.float32))
    keys = numbers(gpu, count, most)
    arrays = {
        words.ENTRY_COUNT: count,
        words.PLACES: gpu.put(places),
        words.SPLITS: gpu.put(splits),
        words.TOP: gpu.put(top),
        words.KEYS: keys,
        words.OWNERS: gpu.room(4 * count),
        words.STARTS: gpu.room(8 * (most + 1)),
    }
    column = calls.GradColumn(most, dim, out, 0, 1, False)
    call = calls.prepare_gradient("float32", batch, [column], arrays, dim, gpu.room)
    base = next(reversed(gpu.held))
    gpu.memory.write(gpu.held[base], call.words)
    entries = GradEntries(count, most, keys, arrays[words.STARTS])
    order = order_entries(gpu, base, entries, batch)
    gpu.launch("scatter_float32", call.tiles, words.THREADS, base, order)
    owners = np.repeat(np.arange(batch), lengths)
    terms = top[owners].astype(np.float64) / lengths[owners][:, None]
    wanted, size = np.zeros((most, dim)), np.full((most, dim), 1e-30)
    np.add.at(wanted, places, terms)
    np.add.at(size, places, np.abs(terms))
    found = gpu.get(out, np.float32, most * dim).reshape(most, dim)
    error = float((np.abs(found - wanted) / size).max())
    if not error < _TOLERANCE:
        raise RuntimeError(f"gradient: off by {error:.2g}")
    return error
