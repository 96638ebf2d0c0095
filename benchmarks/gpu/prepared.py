"""A workload with its data on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.memory import Memory, Workload
from fusion.cpu_ops.column_layout import ColumnAttrs

_POISON = 7e7
_DRAWN = 1 << 26

#: An output may differ from float64 by so much of its bag's sum of absolute values.
_TOLERANCE = 1e-5


@dataclasses.dataclass
class Prepared:
    """A workload in memory: launched by `launch`, its numbers checked by `check`."""

    workload: Workload
    memory: Memory
    tables: list[Any]
    rows: list[npt.NDArray[np.float32]]
    ids: list[npt.NDArray[np.int64]]
    splits: list[npt.NDArray[np.int64]]
    held: list[Any]
    call: Any
    words: Any
    out: Any

    def launch(self) -> None:
        """Computes all columns in one launch."""
        from fusion.gpu_ops.layout.call import THREADS, CombineCall

        self.memory.launch(
            "combine_float32", self.call.tiles(CombineCall.tiles), THREADS, self.call.base
        )

    def moved(self) -> int:
        """The least bytes that must be moved: distinct rows and ids once, the result once."""
        rows = sum(
            4 * column.dim * _distinct(ids, column.rows)
            for column, ids in zip(self.workload.columns, self.ids, strict=True)
        )
        lists = sum(one.nbytes for one in (*self.ids, *self.splits))
        return rows + lists + 4 * self.workload.batch * self.call.width

    def check(self, bags: int = 500) -> float:
        """The largest error of some bags, relative to float64, after computing them over poison.

        Of the first columns so many bags, of the others a few.

        Raises:
            RuntimeError: the kernel reported an error, an element was not written, or is wrong.
        """
        out = self.memory.get(self.out)
        if not np.isfinite(out).all() or (out == np.float32(_POISON)).any():
            raise RuntimeError(f"{self.workload.name}: elements are not written")
        record = self.memory.get(self.words)[self.call.errors : self.call.errors + 4]
        if record[0]:
            raise RuntimeError(f"{self.workload.name}: error {record.tolist()}")
        worst, first = 0.0, 0
        rows = np.unique(np.linspace(0, self.workload.batch - 1, bags).astype(int))
        for index, column in enumerate(self.workload.columns):
            table = self.rows[index]
            for row in rows[:: 1 if index < 40 else 20]:
                start, end = self.splits[index][row : row + 2]
                entries = table[self.ids[index][start:end]].astype(np.float64)
                wanted = entries.sum(0)
                size = np.abs(entries).sum(0) + 1e-30
                if column.combiner == "mean" and end > start:
                    wanted, size = wanted / (end - start), size / (end - start)
                error = np.abs(out[row, first : first + column.dim] - wanted) / size
                worst = max(worst, float(error.max()))
            first += column.dim
        if worst > _TOLERANCE:
            raise RuntimeError(f"{self.workload.name}: off by {worst:.2g}")
        return worst


def _distinct(ids: npt.NDArray[np.int64], rows: int) -> int:
    """How many of a table's rows are looked up."""
    flags = np.zeros(rows, np.bool_)
    flags[ids] = True
    return int(np.count_nonzero(flags))


@dataclasses.dataclass(frozen=True)
class Elements:
    """Random elements of which tables are made: to draw and to copy them takes seconds."""

    values: npt.NDArray[np.float32]
    copy: Any


def random_elements(workloads: Sequence[Workload], memory: Memory, seed: int) -> Elements:
    """Elements for the tables of any one of these workloads; they repeat after `_DRAWN`."""
    most = max((one.elements for one in workloads), default=0)
    drawn = np.random.default_rng(seed).standard_normal(min(most, _DRAWN), np.float32)
    values = np.resize(drawn, most)
    return Elements(values, memory.put(values))


def prepare(workload: Workload, memory: Memory, elements: Elements, seed: int) -> Prepared:
    """Makes tables of elements, draws ids and puts them in memory."""
    from benchmarks.gpu import call as calls
    from fusion.cpu_ops import column_layout

    draw = np.random.default_rng(seed)
    tables, rows, ids, splits, held, columns, used = [], [], [], [], [], [], 0
    for column in workload.columns:
        own = slice(used, used + column.rows * column.dim)
        rows.append(elements.values[own].reshape(column.rows, column.dim))
        table, used = elements.copy[own].reshape(column.rows, column.dim), own.stop
        least, most = column.ids
        lengths = draw.integers(least, most + 1, workload.batch)
        ids.append(draw.integers(0, column.rows, int(lengths.sum())))
        splits.append(np.concatenate([[0], np.cumsum(lengths)]))
        tables.append(table)
        held.append((memory.put(ids[-1]), memory.put(splits[-1])))
        columns.append(
            calls.Column(
                column_layout.ROW_SPLITS,
                memory.address(table),
                column.rows,
                column.dim,
                ids=memory.address(held[-1][0]),
                id_count=ids[-1].size,
                rows=memory.address(held[-1][1]),
                attrs={ColumnAttrs.combiner: int(column.combiner == "mean"), ColumnAttrs.prune: 1},
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
    return Prepared(workload, memory, tables, rows, ids, splits, held, call, space[0], out)
