"""`fusion inspect`: what a rewrite would fuse, and why it would not fuse the rest."""

from __future__ import annotations

import json

import click

from fusion.cli.report import column_table, console, totals


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def inspect(model: str, as_json: bool) -> None:
    """Show which embedding columns of the SavedModel MODEL can be fused."""
    from fusion.saved_model import explain_saved_model

    report = explain_saved_model(model)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
        return
    out = console()
    if report.columns:
        out.print(column_table(report))
    out.print(totals(report, "can be fused"), markup=False)
