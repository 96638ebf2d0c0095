"""`fusion inspect`: what a rewrite would fuse, and why it would not fuse the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.command import Command, check_model
from fusion.cli.json_output import json_option, show_json
from fusion.cli.output_file import check_output_file, write_output_file
from fusion.cli.report import cell, console, keyed_table_table, say, show_table, show_totals
from fusion.cli.require import Requirement, required

if TYPE_CHECKING:
    from fusion.passes.report.columns import Column
    from fusion.passes.report.report import FusionReport
    from fusion.tables.statistics import TableStatistics


def _check(model: str, as_json: bool, column: str | None, svg: str | None, **_: Any) -> None:
    if as_json and column is not None:
        raise click.UsageError("--json prints all columns; leave --column out")
    check_output_file(svg, "--svg")
    check_model(model)


@click.command(cls=Command, check=_check)
@click.argument("model")
@json_option
@click.option(
    "--column",
    metavar="NAME",
    help="Print all that is known about a column, given its name or a part of it.",
)
@click.option(
    "--svg",
    metavar="FILE",
    help="Draw a column before and after; the first one of those chosen that can be fused.",
)
@required("The exit status is 1 if fewer can be.")
def inspect(
    model: str,
    as_json: bool,
    column: str | None,
    svg: str | None,
    requirement: Requirement | None,
) -> None:
    """Show which embedding columns of the SavedModel MODEL can be fused, and why not the rest."""
    from fusion.saved_model import explain_saved_model, keyed_tables

    report = explain_saved_model(model)
    chosen = _chosen(report, column)
    drawn = None if svg is None else _draw(model, chosen, svg)
    tables = keyed_tables(model)
    fields = {
        **report.to_dict(),
        "embedding_variables": [table.to_dict() for table in tables],
    }
    if not as_json:
        _show(report, chosen if column is not None else None, tables)
        if drawn is not None:
            say(f"wrote {svg}: {drawn.name}")
    if requirement is not None:
        requirement.check(report, "can be fused", fields)
    if as_json:
        show_json(fields)


def _show(
    report: FusionReport,
    chosen: list[Column] | None,
    tables: Sequence[TableStatistics],
) -> None:
    """Prints the columns that were chosen in full, or else a table of all."""
    from fusion.cli.column_table import column_table, common_scope
    from fusion.passes.report.columns import distinct_columns
    from fusion.passes.report.report import SCOPE

    out = console()
    if chosen is not None:
        click.echo("\n\n".join(_in_full(c) for c in chosen))
        return
    columns = distinct_columns(report)
    if columns:
        scope = common_scope(columns)
        if scope:
            out.print(cell(f"{SCOPE} is {scope}"))
        table = column_table(report, scope)
        show_table(out, table)
        if table.row_count < len(columns):
            out.print(cell("alike columns are in one row; --column NAME shows one, --json all"))
    show_totals(out, report, "can be fused")
    if tables:
        show_table(out, keyed_table_table(tables))


def _chosen(report: FusionReport, name: str | None) -> list[Column]:
    """Returns the columns of that name, or else whose name contains it; without name all.

    Those that no signature runs are asked last.
    """
    from fusion.passes.report.columns import distinct_columns, traces_joined

    columns, others = distinct_columns(report), traces_joined(report.others)
    if name is None:
        return list(columns)
    chosen = _named(columns, name) or _named(others, name)
    if not chosen:
        message = f"no column has {name!r} in its name; without --column all are listed"
        raise click.BadParameter(message, param_hint="--column")
    return chosen


def _named(columns: Sequence[Column], name: str) -> list[Column]:
    return [c for c in columns if c.name == name] or [c for c in columns if name in c.name]


def _in_full(column: Column) -> str:
    """Returns what is known about a column: of several traces, about the first not fused."""
    shown = column.refusal or column.copies[0]
    count = len(column.copies)
    return f"{shown}\n  one of {count} functions with this column" if count > 1 else str(shown)


def _draw(model: str, chosen: list[Column], file: str) -> Column:
    """Draws the first column, rather one that can be fused, and returns it."""
    if not chosen:
        raise click.ClickException(f"{model} has no embedding column to draw")
    from fusion.passes.report.draw import draw_column
    from fusion.saved_model.rewriting.graphs import column_views

    column = next((candidate for candidate in chosen if candidate.refusal is None), chosen[0])
    shown = column.refusal or column.copies[0]
    write_output_file(file, draw_column(*column_views(model, shown), shown).encode())
    return column
