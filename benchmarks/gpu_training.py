"""The steps of training on a GPU, checked against NumPy: ids before gathers, updates of rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from benchmarks.gpu_steps import Gpu

#: Elements of a row of all three columns, on average.
_PER_ROW = 9


def _words(gpu: Gpu, numbers: Any) -> int:
    return gpu.put(np.array(numbers, np.int64))


def _same(what: str, mine: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    if mine.dtype != wanted.dtype or mine.tobytes() != wanted.tobytes():
        raise RuntimeError(f"{what}: wrong")


def columns(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """Three columns before their gathers: rows in order, in any order, and keys in order."""
    from fusion.cpu_ops import column_words as words
    from fusion.gpu_ops import call_words as call_of
    from fusion.gpu_ops.call import Column
    from fusion.gpu_ops.steps.listing import PreCall, list_entries, number_entries

    batch, each = count // _PER_ROW + 1, count // 3
    ids = [(count * draw.random(each) ** 3).astype(np.int64) for _ in range(3)]
    rows = [draw.integers(0, batch, each) for _ in range(3)]
    rows[0].sort()
    rows[2].sort()
    described = [
        Column(
            words.ROW_IDS, 0, 2**63 - 1, 1, gpu.put(ids[k]), each, rows=gpu.put(rows[k]),
            attrs={words.KEYS_KIND: words.INT64, words.SORT_KEYS: int(k == 2)},
        )
        for k in range(3)
    ]  # fmt: skip
    starts = [each * k for k in range(4)]
    told = _words(gpu, [0] * call_of.told_words(3))
    own, sources, first = (
        _words(gpu, [word for column in described for word in column.column()]),
        _words(gpu, [word for one in described for word in one.source("float32", batch, 0)]),
        _words(gpu, starts),
    )
    call = PreCall(
        _words(gpu, [3, batch, own, sources, first, first, told]),
        told,
        3,
        batch,
        3 * each,
        3 * each,
    )
    splits, entries = gpu.room(12 * (batch + 1)), gpu.room(12 * each)
    listed, paired = list_entries(gpu, call, splits)
    found = gpu.words(told, call_of.told_words(3))
    numbers = [int(one) for one in found[call_of.TROUBLE_WORDS + 3 :][:3]]
    keys = [gpu.room(8 * number) for number in numbers]
    number_entries(gpu, call, listed, paired, found, splits, _words(gpu, keys), entries, 0)
    places = gpu.get(entries, np.int32, 3 * each)
    ends = gpu.get(splits, np.int32, 3 * (batch + 1)).reshape(3, batch + 1)
    _same("columns", found[:4], np.zeros(4, np.int64))
    for k in range(3):
        order = np.argsort(rows[k], kind="stable")
        lengths = np.bincount(rows[k], minlength=batch)
        sums = [starts[k] + one for one in itertools.accumulate(lengths, initial=0)]
        _same("columns", ends[k], np.array(sums, np.int32))
        wanted, at = np.unique(ids[k][order], return_index=True)
        if k != 2:
            wanted = ids[k][order][np.sort(at)]
        mine = gpu.get(keys[k], np.int64, numbers[k])
        _same("columns", mine, wanted)
        _same("columns", mine[places[starts[k] : starts[k + 1]]], ids[k][order])
    return 0.0


def row_update(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """Adam and FTRL, whose operations NumPy rounds one by one, too."""
    from fusion.cpu_ops.column_words import FLOAT32, FLOAT64
    from fusion.cpu_ops.rules import RULES
    from fusion.gpu_ops.steps.row_update import Slots, update_rows

    for dtype, rule in itertools.product((np.float32, np.float64), ("adam", "ftrl")):
        g, row, linear = (draw.standard_normal(count).astype(dtype) for _ in range(3))
        sums, given = draw.random(count).astype(dtype), np.array([0.37, 0.1, 0.02, 0.003], dtype)
        a, b, c, d = given
        if rule == "adam":
            slots = [row, linear, sums]
            m, v = linear + (g - linear) * b, sums + (g * g - sums) * c
            wanted = [row - m * a / (np.sqrt(v) + d), m, v]
        else:
            slots = [row, sums, linear]
            more = sums + g * g
            z = linear + ((g + row * d) - (np.sqrt(more) - np.sqrt(sums)) / a * row)
            wanted = [(np.clip(z, -b, b) - z) / (np.sqrt(more) / a + c), more, z]
        size, trouble = count * np.dtype(dtype).itemsize, _words(gpu, [0] * 4)
        old, new = [gpu.put(one) for one in slots], [gpu.room(size) for _ in slots]
        kind = FLOAT32 if dtype == np.float32 else FLOAT64
        update_rows(
            gpu, kind, [*RULES].index(rule), gpu.put(g), Slots(*old), Slots(*new),
            gpu.put(given), count, trouble,
        )  # fmt: skip
        for address, one in zip(new, wanted, strict=True):
            _same(rule, gpu.get(address, dtype, count), one)
    return 0.0
