"""The table of `fusion inspect`: a row for each column, or for many that are alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from fusion.cli.report import cell, node_of, plain_table
from fusion.passes.recognise.spec import LookupSpec
from fusion.passes.report.columns import Column, distinct_columns
from fusion.passes.report.report import FusionReport, in_scope

#: Columns that are shown in a row each, however alike; and the names in a row of alike ones.
ROWS_SHOWN, NAMES_SHOWN = 30, 3

_HEADINGS = ("column", "table", "combiner", "ids", "weighted", "fused", "why not", "node")


@dataclass(frozen=True)
class _Row:
    """What is shown of a column, or of several."""

    name: str
    table: str
    combiner: str
    ids: str
    weighted: str
    extent: str
    reason: str
    node: str


def column_table(report: FusionReport, scope: str = "") -> Table:
    """Returns the table; alike columns share a row where there are many.

    Args:
        report: on the columns.
        scope: what "~" stands for in names.
    """
    columns = distinct_columns(report)
    if len(columns) <= ROWS_SHOWN:
        rows = [_row(column) for column in columns]
    else:
        alike: dict[_Row, list[Column]] = defaultdict(list)
        for column in columns:
            alike[_kind(column)].append(column)
        rows = [_joined(kind, some, scope) for kind, some in alike.items()]
    table = plain_table(*_HEADINGS)
    for row in rows:
        table.add_row(*(cell(in_scope(text, scope)) for text in vars(row).values()))
    return table


def common_scope(columns: Iterable[Column]) -> str:
    """Returns the folder of most letters in all names together, if half of them are in one."""
    names = [column.name for column in columns]
    folders: Counter[str] = Counter()
    for name in names:
        parts = name.split("/")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    shared = [folder for folder, n in folders.items() if n >= 2 and 2 * n >= len(names)]
    return max(shared, key=lambda folder: (len(folder) * folders[folder], folder), default="")


def _row(column: Column) -> _Row:
    spec, limit = column.spec, column.limit
    return _Row(
        name=column.name,
        table="" if spec is None else spec.matrix,
        combiner="" if spec is None else spec.combiner,
        ids="" if spec is None else spec.source,
        weighted="" if spec is None or not spec.column.use_sparse_weights else "yes",
        extent=_extent(column),
        reason="" if limit is None else limit.reason or "",
        node="" if limit is None else node_of(limit),
    )


def _extent(column: Column) -> str:
    """Returns how much of a column is fused, or can be."""
    if column.is_fused_already:
        return "already"
    if column.limit is None:
        return "yes"
    return "forward" if column.limit.fused else "no"


def _kind(column: Column) -> _Row:
    """Returns what alike columns have in common: all but names and how many rows a table has."""
    spec, row = column.spec, _row(column)
    table = "" if spec is None else _with_rows(spec, "{rows}")
    ids = "" if spec is None else row.ids.removesuffix(f" {spec.ids.values}")
    return replace(row, name="", table=table, ids=ids, node="")


def _with_rows(spec: LookupSpec, rows: str) -> str:
    before, _, sizes = spec.matrix.partition("[")
    return f"{before}[{rows},{sizes.partition(',')[2]}"


def _joined(kind: _Row, columns: Sequence[Column], scope: str) -> _Row:
    """Returns the row of alike columns."""
    if len(columns) == 1:
        return _row(columns[0])
    names = ", ".join(in_scope(column.name, scope) for column in columns[:NAMES_SHOWN])
    more = f" and {len(columns) - NAMES_SHOWN} more" if len(columns) > NAMES_SHOWN else ""
    sizes = {one.spec.table.shape[0] for one in columns if one.spec is not None}
    known = sorted(size for size in sizes if size is not None)
    if not known or None in sizes:
        rows = "?"
    else:
        rows = f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"
    table = kind.table.replace("{rows}", rows)
    return replace(kind, name=f"{names}{more}", table=table, node=_row(columns[0]).node)
