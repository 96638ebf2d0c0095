"""The kernels by steps, on a GPU: each is launched, and checked against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusion.gpu_ops.layout.records import DenseIds, Entries, Ids, PrunedEntries
from fusion.runtime.tensorflow.dtypes import INT32, INT64
from tests.gpu_kernels import bags, columns, gradients, shards, training
from tests.gpu_kernels.device import Gpu
from tests.gpu_kernels.references import TOLERANCES, same

if TYPE_CHECKING:
    from benchmarks.gpu.memory import Memory

Step = Callable[[Gpu, int, np.random.Generator], float]


def _steps() -> Iterator[tuple[str, Step]]:
    """(name, what checks it) of all steps."""
    yield "prefix sums", _prefix_sums
    yield "stable sort", _stable_order
    yield "distinct ids", _unique
    yield "prune and fill", _prune
    yield "prune dense ids", _prune_dense
    yield "elements", _elements
    yield "partition", shards.partition
    yield "last row", bags.last_row
    yield "columns before gathers", training.columns
    yield "columns up to their last rows", training.columns_to_last
    in_dtypes = {
        "columns": columns.columns,
        "gradient of columns": gradients.grouped,
        "bags of distinct ids": gradients.of_ids,
    }
    for (name, step), stored in itertools.product(in_dtypes.items(), TOLERANCES):
        yield f"{name}, {stored}", partial(step, stored=stored)


def chosen(beginnings: Sequence[str]) -> Iterator[tuple[str, Step]]:
    """The steps whose names start so; none chooses all."""
    return (
        (name, step) for name, step in _steps() if not beginnings or name.startswith((*beginnings,))
    )


def check(step: Step, memory: Memory, count: int, seed: int) -> float:
    """Checks a step on `count` random elements; returns its largest error.

    Raises:
        RuntimeError: results are wrong.
    """
    return step(Gpu(memory), count, np.random.default_rng(seed))


def not_launched(launched: Iterable[str]) -> list[str]:
    """The kernels that are not among those that were launched."""
    from fusion.gpu_ops.kernels.registry import KERNELS

    return sorted(set(KERNELS) - set(launched))


def _prefix_sums(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.gpu_ops.steps.sums import prefix_sums

    counts, total = draw.integers(0, 9, count).astype(np.int32), gpu.reserve(8)
    places = prefix_sums(gpu, gpu.put(counts), count, total)
    same("prefix sums", gpu.get(places, np.int64, count), np.cumsum(counts) - counts)
    same("prefix sums", gpu.words(total, 1), np.array([counts.sum()]))
    return 0.0


def _stable_order(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.gpu_ops.steps.sums import stable_order

    most = 3 * count
    keys = draw.integers(0, most, count, endpoint=True).astype(np.int32)
    order = stable_order(gpu, gpu.put(keys), count, most)
    same("stable sort", gpu.get(order, np.int32, count), np.argsort(keys, kind="stable"))
    return 0.0


def _unique(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.ops.bags.gpu_steps.unique import find_firsts, number_ids

    ids = (count * draw.random(count) ** 3).astype(np.int64)
    given = Ids(gpu.put(ids), INT64, count)
    found = find_firsts(gpu, given)
    _, firsts = np.unique(ids, return_index=True)
    keys = ids[np.sort(firsts)]
    same("distinct ids", gpu.words(found.total, 1), np.array([keys.size]))
    outs = gpu.reserve(keys.nbytes), gpu.reserve(4 * count), gpu.reserve(4 * keys.size)
    number_ids(gpu, given, found, keys.size, *outs)
    same("distinct ids", gpu.get(outs[0], np.int64, keys.size), keys)
    same("distinct ids", keys[gpu.get(outs[1], np.int32, count)], ids)
    same("distinct ids", gpu.get(outs[2], np.int32, keys.size).sum(), np.array(count))
    return 0.0


def _prune(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.ops.bags.gpu_steps.prune import fill, mark, put

    batch = count // 2 + 1
    ids = draw.integers(-2, 50, count)
    rows = np.sort(draw.integers(0, batch, count))
    indices = np.stack([rows, np.arange(count)], 1)
    errors = gpu.put(np.zeros(4, np.int64))
    given = Entries(gpu.put(ids), INT64, count, gpu.put(indices), batch, 0, 0, 0)
    found = mark(gpu, given, 0, 0, errors)
    total, first = int(gpu.words(found.totals, 2).sum()), int(gpu.words(found.totals, 1)[0])
    out = PrunedEntries(gpu.reserve(8 * total), gpu.reserve(16 * total), 0)
    put(gpu, given, found, out)
    fill(gpu, given, found, first, 7, 0, out)
    kept = ids >= 0
    empty = np.setdiff1d(np.arange(batch), rows[kept])
    wanted = np.concatenate([ids[kept], np.full(empty.size, 7)])
    fillers = np.stack([empty, np.zeros_like(empty)], 1)
    same("prune", np.array(total), np.array(wanted.size))
    same("prune", gpu.get(out.ids, np.int64, wanted.size), wanted)
    result = gpu.get(out.indices, np.int64, 2 * wanted.size).reshape(-1, 2)
    same("prune", result, np.concatenate([indices[kept], fillers]))
    return 0.0


def _prune_dense(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
    from fusion.ops.bags.gpu_steps.prune_dense import fill_dense, mark_dense, put_dense

    batch, width, ignored, stride, buckets = count // 3 + 1, 3, 4, 7, 20
    ids = draw.integers(-3, 25, (batch, width))
    given = DenseIds(gpu.put(ids), INT64, batch, width, INT32)
    rules = DenseRules(True, ignored, stride, buckets, -1, 0)
    flags, shape = gpu.reserve(batch), gpu.reserve(16)
    marked, found = mark_dense(gpu, given, rules, flags, shape)
    first, fillers = (int(word) for word in gpu.words(marked.totals, 2))
    total = first + fillers
    out = PrunedEntries(gpu.reserve(4 * total), gpu.reserve(16 * total), 0)
    put_dense(gpu, given, marked, found, out)
    fill_dense(gpu, given, marked, first, 3, out)
    numbers = ids + stride * np.arange(width)
    keeps = (ids != ignored) & (numbers >= 0) & (numbers < buckets)
    empty = np.flatnonzero(~keeps.any(1))
    fill = np.stack([empty, np.zeros_like(empty)], 1)
    wanted = np.concatenate([numbers[keeps], np.full(empty.size, 3)])
    same("prune dense ids", np.array(total), np.array(wanted.size))
    same("prune dense ids", gpu.get(out.ids, np.int32, wanted.size), wanted)
    result = gpu.get(out.indices, np.int64, 2 * wanted.size).reshape(-1, 2)
    same("prune dense ids", result, np.concatenate([np.argwhere(keeps), fill]))
    same("prune dense ids", gpu.get(flags, np.bool_, batch), ~keeps.any(1))
    same("prune dense ids", gpu.words(shape, 2), np.array([batch, width]))
    return 0.0


def _elements(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    from fusion.ops.bags.gpu_steps.prune import fill_elements, put_flags, put_in_buckets

    for dtype, kind in ((np.int32, INT32), (np.int64, INT64)):
        ids: npt.NDArray[Any] = draw.integers(-9, 40, count).astype(dtype)
        address = gpu.put(ids)
        put_in_buckets(gpu, Ids(address, kind, count), 30, 7)
        wanted = np.where((ids < 0) | (ids >= 30), 7, ids)
        same("buckets", gpu.get(address, dtype, count), wanted)
    for one in (np.float16(0.3), np.float32(0.3), np.float64(-0.3)):
        filled, bits = gpu.reserve(count * one.itemsize), one.view(f"i{one.itemsize}")
        fill_elements(gpu, filled, count, int(bits), one.itemsize)
        same("fill", gpu.get(filled, one.dtype, count), np.full(count, one))
    numbers, flags = draw.integers(0, 3, count).astype(np.int32), gpu.reserve(count)
    put_flags(gpu, gpu.put(numbers), count, flags)
    same("flags", gpu.get(flags, np.bool_, count), numbers != 0)
    return 0.0
