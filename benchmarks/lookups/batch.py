"""The numbers that go into a program: one batch of inputs, and the tables."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.lookups.draws import Bags, Draw, draw_bags, draw_table
from benchmarks.lookups.workloads import Column, Program

NUMERICS = 32
"""Dense features of a model."""

ColumnInput: TypeAlias = "Bags | npt.NDArray[np.float32]"
"""Bags of ids, or for a bucketized column float32 [batch, 1] in [0, 1)."""


class Unsupported(Exception):
    """A side cannot run a program or a batch; the message says why."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of all columns.

    Attributes:
        size: rows.
        draw: how ids were drawn.
        columns: one input per column of the program.
        numerics: float32 [size, NUMERICS], for a model.
    """

    size: int
    draw: Draw
    columns: tuple[ColumnInput, ...]
    numerics: npt.NDArray[np.float32]

    def ids(self) -> int:
        """How many ids all columns have, negative ones too."""
        return sum(len(one.ids) if isinstance(one, Bags) else len(one) for one in self.columns)


def draw_batch(program: Program, size: int, draw: Draw) -> Batch:
    """The batch of a size and a draw: always the same one."""
    rng = np.random.default_rng([draw.seed, size])
    columns = tuple(_draw_column(rng, column, size, draw) for column in program.columns)
    return Batch(size, draw, columns, rng.random((size, NUMERICS), np.float32))


def _draw_column(rng: np.random.Generator, column: Column, size: int, draw: Draw) -> ColumnInput:
    if column.kind == "bucketized":
        return rng.random((size, 1), np.float32)
    least, most = column.ids
    return draw_bags(rng, draw, size, column.rows, least, most, column.coverage, column.weighted)


def boundaries(rows: int) -> list[float]:
    """What divides [0, 1) into so many buckets."""
    return [place / rows for place in range(1, rows)]


def words(ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """A string for each id."""
    return np.array([b"word%d" % one for one in ids.ravel()], object).reshape(ids.shape)


def table_numbers(program: Program) -> list[int]:
    """Which table each column looks up in; those with a table of their own are numbered on."""
    shared = [column.table for column in program.columns if column.table is not None]
    following = itertools.count(max(shared, default=-1) + 1)
    return [next(following) if one.table is None else one.table for one in program.columns]


def draw_tables(program: Program) -> dict[int, npt.NDArray[np.float32]]:
    """The tables by number: always the same ones."""
    return {
        number: draw_table(np.random.default_rng([1, number]), column.rows, column.dim)
        for number, column in zip(table_numbers(program), program.columns, strict=True)
    }


def traffic(program: Program, batch: Batch) -> int:
    """The least bytes that any implementation moves: the inputs, a row per id, the output.

    An id of a SparseTensor counts 24 bytes, for its indices too. Caches may hold rows that come
    up often: this is no bound on the time when the tables, or the rows in use, fit into them.
    """
    total = 4 * batch.size * program.width
    for column, one in zip(program.columns, batch.columns, strict=True):
        if isinstance(one, Bags):
            valid = int((one.ids >= 0).sum())
            each = 24 if column.kind in ("sparse", "words") else 8
            total += len(one.ids) * (each + 4 * column.weighted) + valid * column.dim * 4
        else:
            total += one.nbytes + batch.size * column.dim * 4
    return total
