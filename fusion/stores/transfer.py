"""Copies tables from tier to tier, and compares those of two tiers; a block of rows at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fusion.stores.addresses import Tables
from fusion.stores.redis import Redis
from fusion.stores.redis_changes import announce
from fusion.stores.tier import Block, Rows, TableDescription
from fusion.stores.versions import write_version_folder


@dataclass(frozen=True)
class Transfer:
    """What was copied of a table.

    Attributes:
      rows: how many.
      byte_count: of these rows and their keys.
      seconds: how long it took.
    """

    rows: int
    byte_count: int
    seconds: float


class _Meter:
    """Counts the rows that pass."""

    def __init__(self) -> None:
        self._rows = self._bytes = 0
        self._begun = time.monotonic()

    def counted(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """These blocks."""
        for keys, rows in blocks:
            self._rows += len(keys)
            self._bytes += keys.nbytes + rows.nbytes
            yield keys, rows

    @property
    def transfer(self) -> Transfer:
        """Those that have passed."""
        return Transfer(self._rows, self._bytes, time.monotonic() - self._begun)


def push(source: Tables, table: str, destination: Tables, block_rows: int) -> Transfer:
    """Adds the rows of a table to one in a database, where they replace those of the same keys.

    Each block is announced to the stores that follow Redis, when it is written. A push that was
    ended halfway is done again as a whole: what was written already is written again.

    Raises:
      TierError: a tier does not answer, or has the table with another dimension.
    """
    source.open(table)
    tier, meter = destination.tier, _Meter()
    tier.open_table(TableDescription(table, source.dimensions[table]))
    for keys, rows in meter.counted(source.tier.blocks(table, block_rows)):
        tier.put(table, keys, rows)
        if isinstance(tier, Redis):
            announce(tier, table, keys)
    return meter.transfer


def pull(
    source: Tables, tables: list[str], folder: Path, block_rows: int, base: int | None = None
) -> dict[str, Transfer]:
    """Writes tables to a new folder, a version that appears when it is complete.

    Raises:
      TierError: the tier does not answer.
      OSError: the folder is there, or cannot be written.
      ValueError: a key is there twice.
    """
    meters: dict[str, _Meter] = {}

    def blocks(table: str) -> Iterator[Block]:
        source.open(table)
        meters[table], dimension = _Meter(), source.dimensions[table]
        nothing = np.empty(0, np.int64), np.empty((0, dimension), np.float32)
        yield from meters[table].counted(chain([nothing], source.tier.blocks(table, block_rows)))

    write_version_folder(folder, {table: blocks(table) for table in tables}, base)
    return {table: meter.transfer for table, meter in meters.items()}


@dataclass(frozen=True)
class Comparison:
    """How a table differs in two tiers.

    Attributes:
      rows: with keys that both have.
      only_a, only_b: keys that one of them has.
      different: rows with an element that differs by more than the tolerance, of those of both.
      deviation: the largest difference of an element; infinite where one of them is no number.
      seconds: how long it took.
    """

    rows: int
    only_a: int
    only_b: int
    different: int
    deviation: float
    seconds: float

    @property
    def is_same(self) -> bool:
        """Whether both have the same rows."""
        return not (self.only_a or self.only_b or self.different)


def compare(a: Tables, b: Tables, table: str, block_rows: int, tolerance: float) -> Comparison:
    """Compares a table in two tiers, which should not be written meanwhile.

    Raises:
      TierError: a tier does not answer.
      ValueError: the dimensions differ.
    """
    begun, dimensions = time.monotonic(), (a.dimensions[table], b.dimensions[table])
    if dimensions[0] != dimensions[1]:
        raise ValueError(f"table {table} has dimensions {dimensions[0]} and {dimensions[1]}")
    a.open(table)
    b.open(table)
    both = only_a = different = 0
    deviation = 0.0
    for keys, rows in a.tier.blocks(table, block_rows):
        others = np.empty(rows.shape, np.float32)
        has_row = b.tier.fetch(table, np.ascontiguousarray(keys), others)
        deviations = _deviations(rows[has_row], others[has_row])
        both += int(has_row.sum())
        only_a += int((~has_row).sum())
        different += int((deviations > tolerance).sum())
        deviation = max(deviation, float(deviations.max(initial=0)))
    only_b = b.tier.count(table) - both
    return Comparison(both, only_a, only_b, different, deviation, time.monotonic() - begun)


def _deviations(rows: Rows, others: Rows) -> np.ndarray:
    """The largest difference of an element in each of n rows, float64 [n]."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(rows.astype(np.float64) - others)
    same = (rows == others) | (np.isnan(rows) & np.isnan(others))
    differences[np.isnan(differences)] = np.inf
    return np.where(same, 0, differences).max(axis=1, initial=0)
