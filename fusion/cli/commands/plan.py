"""`fusion plan`: where the tables of a model go, on several replicas."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.command import Command, FiniteRange, check_model
from fusion.cli.json_output import json_option, show_json
from fusion.cli.report import say
from fusion.printable import printable

if TYPE_CHECKING:
    from fusion.distribute import Table

_COUNT = click.IntRange(min=1)

#: Those of `fusion.distribute.planning`, which needs TensorFlow.
STRATEGIES = ("basic", "memory_balanced", "memory_optimized")


def _check(model: str | None, file: str | None, **_: Any) -> None:
    if (model is None) == (file is None):
        raise click.UsageError("give a MODEL or --tables")
    if model is not None:
        check_model(model)
    else:
        _entries(str(file))


@click.command(cls=Command, check=_check)
@click.argument("model", required=False)
@click.option(
    "--tables",
    "file",
    metavar="FILE",
    help="The tables, in place of MODEL: a JSON list of objects with name, rows, dimension and "
    "perhaps dtype, combiner and hotness, the ids of a sample; or of pairs [rows, dimension].",
)
@click.option("--replicas", type=_COUNT, required=True, help="How many there are.")
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default="basic",
    show_default=True,
    help="How tables that are whole or split by columns are placed.",
)
@click.option(
    "--column-slice-threshold",
    type=_COUNT,
    metavar="ELEMENTS",
    help="Split tables of more elements by columns.",
)
@click.option(
    "--row-slice-threshold",
    type=_COUNT,
    metavar="ELEMENTS",
    help="Split tables of as many elements by rows, over all replicas.",
)
@click.option(
    "--data-parallel-threshold",
    type=_COUNT,
    metavar="ELEMENTS",
    help="Copy tables of at most as many elements to all replicas.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Rows of optimizer slots beside each row, 1 for Adagrad, 2 for Adam.",
)
@click.option(
    "--batch-size",
    type=_COUNT,
    help="Samples of a step on all replicas together; shows what each replica sends.",
)
@click.option(
    "--alpha",
    type=FiniteRange(min=0),
    help="Exponent of Zipf's law of the ids; they are uniform by default.",
)
@json_option
def plan(model: str | None, file: str | None, as_json: bool, **options: Any) -> None:
    """Show on which replicas tables go, and what each replica holds and sends.

    Tables are those that embedding columns of the SavedModel MODEL look up, as `fusion inspect`
    lists them, with an id of each column for a sample, or those of --tables.
    """
    import fusion.distribute

    tables = _read(file) if file is not None else _tables_of(str(model))
    try:
        placement = fusion.distribute.plan(tables, **options)
    except (TypeError, ValueError) as error:
        raise click.ClickException(f"{file or model}: {error}") from error
    if as_json:
        show_json(placement.to_dict())
        return
    for line in str(placement).split("\n"):
        say(line)


def _read(file: str) -> list[Any]:
    """The tables of a file.

    Raises:
        click.ClickException: it cannot be read, or something else stands in it.
    """
    from fusion.distribute import Table

    try:
        return [Table(**entry) if isinstance(entry, dict) else entry for entry in _entries(file)]
    except (TypeError, ValueError) as error:
        message = str(error).replace("Table.__init__() ", "a table ")
        message = re.sub(r"missing \d+ required positional arguments?:", "has no", message)
        raise click.ClickException(f"{file}: {message}") from error


def _entries(file: str) -> list[Any]:
    """The list in a file of JSON.

    Raises:
        click.ClickException: it cannot be read, or has no list.
    """
    try:
        entries = json.loads(Path(file).read_text())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    if not isinstance(entries, list):
        raise click.ClickException(f"{file}: tables must be a list")
    return entries


def _tables_of(model: str) -> list[Table]:
    """The tables that a model looks up; reports those that are omitted.

    Raises:
        click.ClickException: there is none whose size is known.
    """
    import tensorflow as tf

    from fusion.distribute import Table
    from fusion.passes.report.columns import distinct_columns
    from fusion.saved_model import explain_saved_model

    columns = distinct_columns(explain_saved_model(model))
    hotness = Counter(column.name for column in columns)
    tables: dict[str, Table] = {}
    for column in columns:
        spec = column.spec
        rows, dimension = (None, None) if spec is None else spec.table.shape
        if spec is not None and rows is not None and dimension is not None:
            dtype = tf.as_dtype(spec.table.dtype).name
            table = Table(column.name, rows, dimension, dtype, spec.combiner, hotness[column.name])
            tables.setdefault(column.name, table)
    if not tables:
        raise click.ClickException(f"{model} has no embedding column with a table of known size")
    if unknown := ", ".join(name for name in hotness if name not in tables):
        click.echo(printable(f"left out, as their size is not known: {unknown}"), err=True)
    return [*tables.values()]
