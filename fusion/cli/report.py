"""Showing a FusionReport in a terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fusion.passes.report import ColumnReport, FusionReport

_PLAIN_WIDTH = 160
_NAMES_SHOWN = 3


def console() -> Console:
    """Returns the console for results; wide when the output goes to a file or a pipe."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def totals(report: FusionReport, verb: str) -> str:
    """Returns the line with the counts; `verb` is e.g. "fused" or "can be fused"."""
    count = len(report.columns)
    if not count:
        return "no embedding column found: nothing to fuse"
    nodes = f"{report.nodes_before} -> {report.nodes_after} nodes"
    return f"{report.fused_count} of {count} columns {verb}, {nodes}"


def column_table(report: FusionReport) -> Table:
    """Returns a table with a row for every column: what it is, or why it stays stock."""
    table = _table("column", "fused", "what or why", "node")
    for column in report.columns:
        what = column.spec if column.fused else column.reason
        table.add_row(_name(column), "yes" if column.fused else "no", what or "", column.node or "")
    return table


def refusal_table(report: FusionReport) -> Table:
    """Returns a table of the columns not fused: a row for each reason."""
    groups: dict[str, list[ColumnReport]] = defaultdict(list)
    for column in report.columns:
        if not column.fused:
            groups[column.reason or ""].append(column)
    table = _table("columns", "not fused because", "at node")
    for reason, columns in groups.items():
        names = ", ".join(_name(column) for column in columns[:_NAMES_SHOWN])
        more = len(columns) - _NAMES_SHOWN
        names += f" and {more} more" if more > 0 else ""
        table.add_row(*map(Text, (names, reason, columns[0].node or "")))
    return table


def _name(column: ColumnReport) -> str:
    return f"{column.function}: {column.name}" if column.function else column.name


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
