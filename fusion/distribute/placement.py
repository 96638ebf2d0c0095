"""A plan: which replica holds what of each table, and what that costs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fusion.distribute.tables import Table
from fusion.distribute.traffic import (
    Traffic,
    replicated_traffic,
    row_sharded_traffic,
    sliced_traffic,
)
from fusion.printable import aligned, size

Kind = Literal["replicated", "rows", "columns", "whole"]


@dataclass(frozen=True)
class Slice:
    """What one replica holds of a table.

    Attributes:
        replica: its index.
        rows: of the table.
        columns: of these rows.
    """

    replica: int
    rows: range
    columns: range

    @property
    def elements(self) -> int:
        """Rows times columns."""
        return len(self.rows) * len(self.columns)


@dataclass(frozen=True)
class Placement:
    """The placement of a table.

    Attributes:
        table: the table.
        kind: "replicated", a copy on each replica; "rows", row r on replica r mod N; "columns", all
            rows on each of some replicas, with different columns; or "whole", on one replica.
        slices: by replica, at most one on each.
    """

    table: Table
    kind: Kind
    slices: tuple[Slice, ...]

    @property
    def replicas(self) -> tuple[int, ...]:
        """The replicas that have something of it."""
        return tuple(piece.replica for piece in self.slices)


@dataclass(frozen=True)
class Joined:
    """Tables, or columns of some, that can be one on a replica: below each other.

    Attributes:
        replica: the replica.
        tables: their names.
        dimension, dtype, combiner: what they have in common.
    """

    replica: int
    tables: tuple[str, ...]
    dimension: int
    dtype: str
    combiner: str | None


@dataclass(frozen=True)
class Plan:
    """The placement of tables, as `plan` decides. `str()` is a table for people.

    Attributes:
        replicas: how many there are.
        strategy: by which whole tables and columns were placed.
        placements: one of each table, in the tables' order.
        slots: rows of optimizer slots beside each row.
        batch_size: samples of a step on all replicas together, None if not known.
        alpha: exponent of Zipf's law of the ids, None for uniform ids.
    """

    replicas: int
    strategy: str
    placements: tuple[Placement, ...]
    slots: int = 0
    batch_size: int | None = None
    alpha: float | None = None

    @cached_property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of tables and slots on each replica."""
        totals = [0] * self.replicas
        for placement, piece in self._slices():
            totals[piece.replica] += self._bytes(placement.table, piece.elements)
        return tuple(totals)

    @cached_property
    def traffic(self) -> tuple[Traffic, ...] | None:
        """What each replica sends in a training step; None without `batch_size`.

        `fusion.distribute.traffic` has the model. Tables that are whole or split by columns are
        looked up by their owners, which get the ids of all replicas.
        """
        if self.batch_size is None:
            return None
        sent = np.zeros([self.replicas, len(Traffic._fields)])
        for placement in self.placements:
            arguments = placement.table, self.replicas, self.batch_size, self.alpha
            if placement.kind == "replicated":
                sent += replicated_traffic(*arguments)
            elif placement.kind == "rows":
                sent += row_sharded_traffic(*arguments)
            else:
                for piece in placement.slices:
                    width = len(piece.columns)
                    owner, other = sliced_traffic(
                        placement.table, width, self.replicas, self.batch_size
                    )
                    sent[: piece.replica] += other
                    sent[piece.replica] += owner
                    sent[piece.replica + 1 :] += other
        return tuple(Traffic(*row) for row in sent.tolist())

    @cached_property
    def joined(self) -> tuple[Joined, ...]:
        """The groups of at least two tables that can be joined, by replica.

        They are whole or split by columns, and have the same dtype, columns and combiner.
        """
        groups: dict[tuple[Any, ...], list[str]] = {}
        for placement, piece in self._slices():
            table = placement.table
            if placement.kind in ("whole", "columns"):
                key = (piece.replica, len(piece.columns), table.dtype, table.combiner)
                groups.setdefault(key, []).append(table.name)
        joined = (
            Joined(replica, tuple(names), dimension, dtype, combiner)
            for (replica, dimension, dtype, combiner), names in groups.items()
            if len(names) > 1
        )
        return tuple(sorted(joined, key=lambda group: group.replica))

    def to_dict(self) -> dict[str, Any]:
        """Returns dicts, lists, strings and numbers, ready for JSON.

        Slices are those of columns, as [start, stop], of tables that are whole or split by columns.
        """
        traffic = self.traffic and [
            {**sent._asdict(), "total": sent.total} for sent in self.traffic
        ]
        return {
            "replicas": self.replicas,
            "strategy": self.strategy,
            "slots": self.slots,
            "batch_size": self.batch_size,
            "alpha": self.alpha,
            "tables": [_placement_dict(placement) for placement in self.placements],
            "joined": [{**vars(group), "tables": list(group.tables)} for group in self.joined],
            "bytes": list(self.bytes),
            "traffic": traffic,
        }

    def __str__(self) -> str:
        head = f"{len(self.placements)} tables on {self.replicas} replicas, {self.strategy}"
        slots = f", slots x {self.slots}" if self.slots else ""
        batch = f", batches of {self.batch_size:,}" if self.batch_size else ""
        largest, mean = max(self.bytes), sum(self.bytes) / self.replicas
        last = f"the largest replica has {largest / mean:.2f} times the mean"
        parts = ([head + slots + batch], self._table_lines(), self._replica_lines(), [last])
        return "\n\n".join("\n".join(lines) for lines in parts)

    def _slices(self) -> Iterator[tuple[Placement, Slice]]:
        for placement in self.placements:
            for piece in placement.slices:
                yield placement, piece

    def _bytes(self, table: Table, elements: int) -> int:
        return elements * table.item_bytes * (1 + self.slots)

    def _table_lines(self) -> list[str]:
        rows = []
        for placement in self.placements:
            table = placement.table
            total = size(self._bytes(table, table.elements))
            shape = f"{table.rows:,}", f"{table.dimension:,}", table.dtype, table.combiner or ""
            rows.append((table.name, *shape, total, placement.kind, _where(placement)))
        headings = ("table", "rows", "dimension", "dtype", "combiner", "size", "placed", "on")
        return aligned(headings, rows)

    def _replica_lines(self) -> list[str]:
        tables = Counter(piece.replica for _, piece in self._slices())
        joined: dict[int, list[str]] = {}
        for group in self.joined:
            joined.setdefault(group.replica, []).append(_short(group.tables))
        lines = []
        for replica in range(self.replicas):
            sent = self.traffic and self.traffic[replica]
            lines.append(
                (
                    f"{tables[replica]:,}",
                    size(self.bytes[replica]),
                    *([size(number) for number in (*sent[1:], sent.total)] if sent else ()),
                    *([", ".join(joined.get(replica, []))] if joined else ()),
                )
            )
        headings = ["replica", "tables", "size"]
        headings += ["sent: ids", "rows", "gradients", "in all"] if self.traffic else []
        headings += ["joined"] if joined else []
        alike = [(line, len([*group])) for line, group in itertools.groupby(lines)]
        ends = itertools.accumulate(count for _, count in alike)
        rows = [
            (_span(end - count, end), *line) for (line, count), end in zip(alike, ends, strict=True)
        ]
        return aligned(headings, rows)


_NAMES_SHOWN = 4


def _short(names: tuple[str, ...]) -> str:
    """The names of joined tables."""
    more = len(names) - _NAMES_SHOWN
    return "+".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _span(start: int, stop: int) -> str:
    """Replicas in a row."""
    return f"{start}" if stop == start + 1 else f"{start}-{stop - 1}"


def _where(placement: Placement) -> str:
    """The replicas that have a table, and the columns that each has."""
    if placement.kind != "columns":
        return _span(placement.replicas[0], placement.replicas[-1] + 1)
    return ", ".join(
        f"{piece.replica} ({_span(piece.columns.start, piece.columns.stop)})"
        for piece in placement.slices
    )


def _placement_dict(placement: Placement) -> dict[str, Any]:
    slices = [
        {"replica": piece.replica, "columns": [piece.columns.start, piece.columns.stop]}
        for piece in placement.slices
        if placement.kind in ("whole", "columns")
    ]
    return {**vars(placement.table), "kind": placement.kind, "slices": slices}
