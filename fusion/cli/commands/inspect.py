"""`fusion inspect`: what a rewrite would fuse, and why it would not fuse the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.command import Command, check_model
from fusion.cli.json_output import json_option, show_json
from fusion.cli.output_file import check_output_file, write_output_file
from fusion.cli.report import (
    cell,
    console,
    keyed_table_table,
    plain_table,
    say,
    show_table,
    show_totals,
)
from fusion.cli.require import Requirement, required

if TYPE_CHECKING:
    from fusion.passes.report.columns import Column
    from fusion.passes.report.report import FusionReport
    from fusion.saved_model import Repeats
    from fusion.tables.statistics import TableStatistics


def _check(
    model: str,
    as_json: bool,
    column: str | None,
    svg: str | None,
    requests: str | None,
    signature: str | None,
    **_: Any,
) -> None:
    if signature is not None and requests is None:
        raise click.UsageError("--signature is that of --requests, which is not given")
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
@click.option(
    "--requests",
    metavar="FILE",
    help="Show instead which inputs have the same row throughout each batch of an npz file of "
    "arrays or a TFRecord file of Examples, as `fusion rewrite --request-inputs auto` takes them.",
)
@click.option(
    "--signature",
    metavar="NAME",
    help="With --requests, the signature.  [default: the only one, or serving_default]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="With --requests, how many Examples of a TFRecord file are a batch.",
)
@required("The exit status is 1 if fewer can be.")
def inspect(
    model: str,
    as_json: bool,
    column: str | None,
    svg: str | None,
    requests: str | None,
    signature: str | None,
    batch_size: int,
    requirement: Requirement | None,
) -> None:
    """Show which embedding columns of the SavedModel MODEL can be fused, and why not the rest."""
    from fusion.saved_model import explain_saved_model, keyed_tables, repeated_inputs

    repeats = None
    if requests is not None:
        repeats = repeated_inputs(model, requests, signature=signature, batch_size=batch_size)
    report = explain_saved_model(model)
    chosen = _chosen(report, column)
    drawn = None if svg is None else _draw(model, chosen, svg)
    tables = keyed_tables(model)
    fields = {
        **report.to_dict(),
        "embedding_variables": [table.to_dict() for table in tables],
    }
    if repeats is not None:
        fields["requests"] = repeats.to_dict()
    if not as_json and repeats is not None:
        _show_repeats(repeats)
    if not as_json and (repeats is None or column is not None):
        _show(report, chosen if column is not None else None, tables)
    if not as_json and drawn is not None:
        say(f"wrote {svg}: {drawn.name}")
    if requirement is not None:
        requirement.check(report, "can be fused", fields)
    if as_json:
        show_json(fields)


def _show_repeats(repeats: Repeats) -> None:
    """Prints what repeats in recorded inputs, and how to rewrite a model for it."""
    from fusion.saved_model.requests.repeats import repeated_text

    out = console()
    table = plain_table(repeats.kind, "rows", "different", "repeats")
    for column in table.columns[1:3]:
        column.justify = "right"
    rows, batches, names = sum(repeats.batches), len(repeats.batches), repeats.names
    for one in repeats.inputs:
        partly = f"in {one.batches} of {batches} batches" if one.batches else "no"
        table.add_row(
            cell(one.name),
            f"{rows:,}",
            f"{one.different:,}",
            "yes" if one.name in names else partly,
        )
    show_table(out, table)
    out.print(cell(f"signature {repeats.signature}, {repeats.seen}: {repeated_text(repeats)}"))
    if 0 < len(names) < len(repeats.inputs):
        out.print(cell(f"fusion rewrite --request-inputs {','.join(names)}"))


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
