"""Showing results in a terminal: a FusionReport, tables in files, outputs that differ."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fusion.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fusion.passes.report.report import ColumnReport, FusionReport
    from fusion.saved_model.table_files.file_table import FileTable
    from fusion.saved_model.table_files.packed import PackedTable
    from fusion.saved_model.verify import Verification
    from fusion.tables.statistics import TableStatistics

_PLAIN_WIDTH = 200
_WIDEST = 1 << 16
_NAMES_SHOWN = 3
#: Beside its heading a cell gets at least so many characters a line, or else goes on below it.
_NARROWEST = 20


class _Console(Console):
    """A console that leaves it to the program what happens when its reader is gone."""

    def on_broken_pipe(self) -> None:
        """Lets `main` report it by the exit status."""
        raise BrokenPipeError


def console() -> Console:
    """Returns the console for results; wide when the output goes to a file or a pipe."""
    plain = _Console(highlight=False)
    return plain if plain.is_terminal else _Console(highlight=False, width=_PLAIN_WIDTH)


def say(text: object) -> None:
    """Prints a line of text as it is, without what a terminal would obey."""
    click.echo(printable(text))


def cell(text: object) -> Text:
    """Returns text for rich, which finds no markup in it."""
    return Text(printable(text))


def totals(report: FusionReport, verb: str) -> str:
    """Returns the line with the counts; `verb` is e.g. "fused" or "can be fused".

    Columns that have fused ops already are counted apart.
    """
    from fusion.passes.report.columns import distinct_columns
    from fusion.passes.report.report import already_fused

    columns = distinct_columns(report)
    if not columns:
        what = "" if report.parsers else ": nothing to fuse"
        return f"no embedding column found{what}"
    others = [column for column in columns if not column.is_fused_already]
    already = already_fused([column.copies[0] for column in columns if column.is_fused_already])
    parts = [] if already is None else [already]
    if others:
        fused = sum(column.refusal is None for column in others)
        text = f"{fused} of {len(others)} {'columns' if already is None else 'others'} {verb}"
        lookups = [copy for column in others for copy in column.copies]
        if len(lookups) > len(others):
            functions = len({lookup.function for lookup in lookups})
            text += f" ({report.fused_count} of {len(lookups)} lookups in {functions} functions)"
        parts.append(text)
    after = "" if report.nodes_after == report.nodes_before else f" -> {report.nodes_after}"
    return f"{'; '.join(parts)}, {report.nodes_before}{after} nodes"


def show_totals(out: Console, report: FusionReport, verb: str) -> None:
    """Prints `totals`, how many lookups no signature runs, and what a call has beside lookups."""
    from fusion.passes.report.call import call_lines
    from fusion.passes.report.front import front_lines
    from fusion.passes.report.report import others_line

    out.print(cell(totals(report, verb)))
    if (line := others_line(report, verb)) is not None:
        out.print(cell(line))
    for line in (*front_lines(report.front, verb), *call_lines(report.call)):
        out.print(cell(line))


def refusal_table(report: FusionReport) -> Table:
    """Returns a table of the columns not fused, or not all of them: a row for each reason."""
    from fusion.passes.report.columns import distinct_columns

    groups: dict[str, list[tuple[str, ColumnReport]]] = defaultdict(list)
    for column in distinct_columns(report):
        if (limit := column.limit) is not None and not column.is_fused_already:
            reason = f"{'forward alone: ' if limit.fused else ''}{limit.reason or ''}"
            groups[reason].append((column.name, limit))
    table = plain_table("not fused", "because", "at node")
    for reason, columns in groups.items():
        names = ", ".join(name for name, _ in columns[:_NAMES_SHOWN])
        more = len(columns) - _NAMES_SHOWN
        names += f" and {more} more" if more > 0 else ""
        table.add_row(*map(cell, (names, reason, node_of(columns[0][1]))))
    return table


def keyed_table_table(tables: Iterable[TableStatistics]) -> Table:
    """Returns a table with a row for every embedding variable: how full it is."""
    shown = plain_table("embedding variable", "keys", "rows", "capacity", "load", "bytes")
    for table in tables:
        of_capacity = (
            ("", "") if table.load is None else (f"{table.capacity:,}", f"{table.load:.1%}")
        )
        row = (table.name, f"{table.keys:,}", f"{table.rows:,}", *of_capacity, f"{table.bytes:,}")
        shown.add_row(*map(cell, row))
    return shown


def table_fields(table: FileTable) -> dict[str, Any]:
    """Returns what a table in a file is, ready for JSON."""
    return {
        "name": table.name,
        "shape": [table.rows, table.width],
        "bytes": table.size,
        "file": str(table.file),
    }


def packed_table(packed: Iterable[PackedTable]) -> Table:
    """Returns a table with a line for each table that was to be packed.

    Exports of Keras have each twice, with one name and the same rows.
    """
    shown = plain_table("table", "dtype", "shape", "MB", "was", "largest deviation")
    for one in dict.fromkeys(packed):
        shown.add_row(
            cell(one.name),
            one.dtype,
            f"{one.rows} x {one.dimension}",
            f"{one.stored_bytes / 1e6:.1f}",
            f"{(one.stored_bytes if one.refusal else one.plain_bytes) / 1e6:.1f}",
            cell(one.refusal or f"{one.deviation:.3g} of {one.largest:.3g}"),
        )
    return shown


def deviation_table(verification: Verification) -> Table:
    """Returns a table with a line for each output that differs."""
    shown = plain_table("signature", "output", "largest deviation", "share", "elements that differ")
    for one in verification.deviations:
        gap = "" if one.max_abs is None else f"{one.max_abs:.3g}"
        share = "" if one.share is None else f"{one.share:.2g}"
        count = f"{one.differing} of {one.elements}"
        shown.add_row(cell(one.signature), cell(one.output), gap, share, count)
    return shown


def node_of(column: ColumnReport) -> str:
    """Returns the node at which the reason of a column shows, with its function."""
    node = column.node or column.anchor
    return f"{column.function}: {node}" if column.function else node


def plain_table(*headings: str) -> Table:
    """Returns a table without lines, whose long cells go on in the next line; see `show_table`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def show_table(out: Console, table: Table) -> None:
    """Prints a table without the columns that are empty.

    Where it is too wide, each row becomes lines: its first cell, and each other one after the
    heading.
    """
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = []
    for column in table.columns:
        if any(map(str, own := [*column.cells])):
            shown.add_column(column.header, overflow="fold", justify=column.justify)
            cells.append(own)
    rows = [*zip(*cells, strict=True)]
    for row in rows:
        shown.add_row(*row)
    wide = out.options.update(width=_WIDEST)
    if Measurement.get(out, wide, shown).maximum <= out.width:
        out.print(shown)
        return
    headings = [str(column.header) for column in shown.columns]
    indent = max(map(len, headings[1:]), default=0) + 2
    for first, *others in rows:
        out.print(first)
        named = [pair for pair in zip(headings[1:], others, strict=True) if str(pair[1])]
        if out.width < indent + _NARROWEST:
            for heading, other in named:
                out.print(Text.assemble(f"  {heading}  ", other, overflow="fold"))
            continue
        lines = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        lines.add_column(overflow="fold", min_width=indent)
        lines.add_column(overflow="fold")
        for heading, other in named:
            lines.add_row(Text(f"  {heading}"), other)
        out.print(lines)
