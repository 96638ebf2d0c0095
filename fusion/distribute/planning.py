"""Deciding where tables go.

The rules and their names are those of NVIDIA's distributed-embeddings (`DistEmbeddingStrategy`).
Beyond them, a strategy that balances memory takes a simpler one's placement where that happens to
have the smaller maximum.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusion.distribute.placement import Placement, Plan, Slice
from fusion.distribute.tables import Table, as_tables, number
from fusion.tables.arguments import integer


def plan(
    tables: Iterable[Table | Sequence[int]],
    replicas: int,
    strategy: str = "basic",
    column_slice_threshold: int | None = None,
    row_slice_threshold: int | None = None,
    data_parallel_threshold: int | None = None,
    *,
    slots: int = 0,
    batch_size: int | None = None,
    alpha: float | None = None,
) -> Plan:
    """Decides on which replicas tables are. Nothing is made or moved.

    A table of at most `data_parallel_threshold` elements is replicated; else one of at least
    `row_slice_threshold` is split by rows over all replicas. The others are placed whole, or split
    by columns into 2, 4, 8, ... slices until none has more than `column_slice_threshold` elements
    or each replica or each column has one. Slices of a table that come to the same replica are one.

    Args:
        tables: `Table`s, or pairs (rows, dimension) of tables that are named by their index.
        replicas: how many there are.
        strategy: how whole tables and slices of columns are placed. "basic": one after the other, a
            replica each, round and round. "memory_balanced": the largest first, to the replicas
            forth and back, so that each has the same number, or one more. "memory_optimized": the
            largest first, each to the replica with the fewest bytes so far.
        column_slice_threshold: elements; None splits by columns only where there are fewer tables
            to be placed than replicas, the largest until there are as many slices, or more.
        row_slice_threshold: elements; None splits no table by rows.
        data_parallel_threshold: elements; None replicates no table.
        slots: rows of optimizer slots beside each row, e.g. 2 for Adam; they count as memory.
        batch_size: samples of a step on all replicas together, for `Plan.traffic`.
        alpha: exponent of Zipf's law of the ids, for that, too; None for uniform ids.

    Raises:
        TypeError: an argument of another type.
        ValueError: another strategy, a number that is too small, no table, or two with one name.
    """
    if strategy not in (*STRATEGIES,):
        raise ValueError(f"strategy must be one of {(*STRATEGIES,)}, got {strategy!r}")
    replicas, slots = integer("replicas", replicas), integer("slots", slots, least=0)
    all_tables = as_tables(tables)
    max_replicated = _optional("data_parallel_threshold", data_parallel_threshold)
    min_split = _optional("row_slice_threshold", row_slice_threshold)
    placements: dict[str, Placement] = {}
    if replicas > 1:
        for table in all_tables:
            if max_replicated is not None and table.elements <= max_replicated:
                placements[table.name] = _replicated(table, replicas)
            elif min_split is not None and table.elements >= min_split:
                placements[table.name] = _split_by_rows(table, replicas)
    others = [table for table in all_tables if table.name not in placements]
    threshold = _optional("column_slice_threshold", column_slice_threshold)
    if threshold is None:
        threshold = _threshold(others, replicas)
    loads = [0] * replicas
    for placement in placements.values():
        for piece in placement.slices:
            loads[piece.replica] += piece.elements * placement.table.item_bytes
    for placement in _placed(others, threshold, loads, strategy):
        placements[placement.table.name] = placement
    return Plan(
        replicas=replicas,
        strategy=strategy,
        placements=tuple(placements[table.name] for table in all_tables),
        slots=slots,
        batch_size=_optional("batch_size", batch_size),
        alpha=None if alpha is None else number("alpha", alpha),
    )


def _optional(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value)


def _replicated(table: Table, replicas: int) -> Placement:
    rows, columns = range(table.rows), range(table.dimension)
    slices = (Slice(replica, rows, columns) for replica in range(replicas))
    return Placement(table, "replicated", tuple(slices))


def _split_by_rows(table: Table, replicas: int) -> Placement:
    columns = range(table.dimension)
    slices = (
        Slice(replica, range(replica, table.rows, replicas), columns)
        for replica in range(min(replicas, table.rows))
    )
    return Placement(table, "rows", tuple(slices))


def _threshold(tables: Sequence[Table], replicas: int) -> int:
    """The largest one by which there is a slice for each replica, if that can be."""
    threshold = max((table.elements for table in tables), default=0)
    while threshold > 0:
        counts = [_slice_count(table, threshold, replicas) for table in tables]
        if sum(counts) >= replicas:
            break
        # The largest slices of those that can be smaller are to be split next.
        threshold = max(
            (
                _widest(table, count) - 1
                for table, count in zip(tables, counts, strict=True)
                if count < min(replicas, table.dimension)
            ),
            default=0,
        )
    return threshold


def _slice_count(table: Table, threshold: int, replicas: int) -> int:
    """Into how many slices of columns a table is split."""
    max_count = min(replicas, table.dimension)
    count = 1
    while count < max_count and _widest(table, count) > threshold:
        count *= 2
    return min(count, max_count)


def _widest(table: Table, count: int) -> int:
    """Elements of the largest one of so many slices of columns."""
    return table.rows * -(-table.dimension // count)


def _placed(
    tables: Sequence[Table], threshold: int, loads: Sequence[int], strategy: str
) -> Iterable[Placement]:
    """Whole tables and slices of columns, on replicas with these bytes already."""
    slices = [
        (table, len(range(part, table.dimension, count)))
        for table in tables
        for count in [_slice_count(table, threshold, len(loads))]
        for part in range(count)
    ]
    sizes = [table.rows * width * table.item_bytes for table, width in slices]
    candidates = [place(sizes, loads) for place in STRATEGIES[strategy]]
    owners = min(candidates, key=lambda owners: max(_filled(sizes, loads, owners)))
    widths: dict[Table, list[int]] = {table: [0] * len(loads) for table in tables}
    for (table, width), owner in zip(slices, owners, strict=True):
        widths[table][owner] += width
    return (_split_by_columns(table, widths[table]) for table in tables)


def _split_by_columns(table: Table, widths: Sequence[int]) -> Placement:
    """So many columns on each replica, those of the first replicas first."""
    slices, start = [], 0
    for replica, width in enumerate(widths):
        if width:
            slices.append(Slice(replica, range(table.rows), range(start, start + width)))
            start += width
    return Placement(table, "whole" if len(slices) == 1 else "columns", tuple(slices))


def _filled(sizes: Sequence[int], loads: Sequence[int], owners: Sequence[int]) -> list[int]:
    """The bytes of each replica after sizes are added to their owners."""
    result = [*loads]
    for owner, size in zip(owners, sizes, strict=True):
        result[owner] += size
    return result


def _round_robin(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    return [index % len(loads) for index in range(len(sizes))]


def _forth_and_back(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    replicas, owners = len(loads), [0] * len(sizes)
    for turn, index in enumerate(_largest_first(sizes)):
        lap, replica = divmod(turn, replicas)
        owners[index] = replicas - 1 - replica if lap % 2 else replica
    return owners


def _to_the_smallest(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    owners = [0] * len(sizes)
    heap = [(load, replica) for replica, load in enumerate(loads)]
    heapq.heapify(heap)
    for index in _largest_first(sizes):
        load, owners[index] = heap[0]
        heapq.heapreplace(heap, (load + sizes[index], owners[index]))
    return owners


def _largest_first(sizes: Sequence[int]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda index: -sizes[index])


_Place = Callable[[Sequence[int], Sequence[int]], list[int]]

#: For each strategy what it may choose from: the placement with the smallest maximum, the first of
#: these if there are several.
STRATEGIES: dict[str, tuple[_Place, ...]] = {
    "basic": (_round_robin,),
    "memory_balanced": (_forth_and_back, _round_robin),
    "memory_optimized": (_to_the_smallest, _forth_and_back, _round_robin),
}
