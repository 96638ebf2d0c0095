"""`fusion rewrite`: a model with fused lookups from one without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.output_file import check_output_file
from fusion.cli.packed import deviation_table, packed_table
from fusion.cli.report import cell, console, refusal_table, totals
from fusion.cli.run_options import recorded_inputs, timeout

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fusion.saved_model import Rewrite, RewriteOptions
    from fusion.saved_model.runtimes import Runtimes

_FUSED_LOAD = "run `import fusion` before loading it"


@click.command()
@click.argument("src")
@click.argument("dst")
@click.option(
    "--target",
    type=click.Choice(["fused", "stock"]),
    default="fused",
    show_default=True,
    help="What lookups become: ops of this package, or fewer ops of TensorFlow's own.",
)
@click.option(
    "--runtime",
    metavar="VERSION",
    help="With --target stock, the TensorFlow that DST has to load in: no newer op is written.  "
    "[default: the version that SRC records]",
)
@click.option(
    "--tables",
    type=click.Choice(["variables", "mapped", "memory"]),
    default="variables",
    show_default=True,
    help="Where tables are: among the variables, or in files that are mapped into memory, or read, "
    "when DST is loaded.",
)
@click.option(
    "--table-bytes",
    "least_table_bytes",
    type=click.IntRange(min=1),
    default=1 << 20,
    show_default=True,
    help="With --tables and --dtype, what is smaller stays among the variables, and float32.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16", "int8", "int4"]),
    default="float32",
    show_default=True,
    help="What elements of tables are stored as; int8 and int4 with a scale and an offset a row.",
)
@click.option(
    "--table-dtype",
    "table_dtypes",
    metavar="NAME=DTYPE",
    multiple=True,
    help="The dtype of tables whose names are like NAME, a pattern as user_*, of any size; several "
    "times, the last one counts.",
)
@click.option(
    "--max-deviation",
    type=click.FloatRange(min=0),
    metavar="X",
    help="With dtypes, what outputs may differ by, as a share of their largest element.  "
    "[default: what they differ by is only shown]",
)
@click.option("--no-verify", is_flag=True, help="Skip the comparison of the two models.")
@timeout()
@click.option(
    "--outputs",
    metavar="A,B",
    help="The nodes of a frozen graph that are fetched.  [default: those that no node reads]",
)
@click.option(
    "--link",
    is_flag=True,
    help="Hard-link the variables and assets instead of copying them, where that is possible.",
)
@recorded_inputs(
    "Compare on an npz file of arrays or a TFRecord file of Examples, as `fusion verify`."
)
@click.option("--report", "report_file", help="Also write the report to this file, as JSON.")
def rewrite(
    src: str,
    dst: str,
    no_verify: bool,
    outputs: str | None,
    report_file: str | None,
    table_dtypes: tuple[str, ...],
    **rest: Any,
) -> None:
    """Write to DST the SavedModel or frozen graph SRC with its embedding columns fused.

    DST's signatures are compared with SRC's on generated or recorded inputs, to the bit, before it
    appears.
    SRC is never changed. Run `import fusion` before loading DST; with --target stock it loads
    wherever SRC does, and what is fused in SRC becomes stock ops again.
    """
    check_output_file(report_file, "--report")
    from fusion.saved_model import RewriteOptions, rewrite_saved_model

    names = None if outputs is None else [name for name in outputs.split(",") if name]
    try:
        options = RewriteOptions(
            verify=not no_verify, outputs=names, dtypes_by_name=_by_name(table_dtypes), **rest
        )
    except ValueError as error:  # of the other options click knows what they may be
        message = str(error).removeprefix("fuse_saved_model: ")
        hints = {"tables": "--tables", "dtype": "--dtype", "max_deviation": "--max-deviation"}
        hint = hints.get(message.partition(" ")[0], "--runtime")
        raise click.BadParameter(message, param_hint=hint) from None
    with _copying() as progress:
        done = rewrite_saved_model(src, dst, options, progress)
    if report_file is not None:
        _write_report(report_file, done)
    _show(done, dst, options)


def _by_name(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Splits NAME=DTYPE; names may have a = in them."""
    found = []
    for text in texts:
        name, equals, dtype = text.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=DTYPE", param_hint="--table-dtype")
        found.append((name, dtype))
    return tuple(found)


@contextmanager
def _copying() -> Iterator[Callable[[int, int], None] | None]:
    """Yields what shows the progress of a copy, and removes it in the end; None off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    out = Console(stderr=True)
    if not out.is_terminal:  # rich would end the lines that it does not write
        yield None
        return
    with Progress(*columns, console=out, transient=True) as bars:
        task: list[TaskID] = []

        def show(done: int, total: int) -> None:
            if not task:
                task.append(bars.add_task("", total=total))
            # What follows a copy takes its time too, and is none.
            bars.update(task[0], completed=done, visible=done < total, refresh=True)

        yield show


def _write_report(file: str, done: Rewrite) -> None:
    try:
        Path(file).write_text(json.dumps(done.report.to_dict(), indent=2) + "\n")
    except OSError as error:
        raise click.ClickException(
            f"the model is written, but its report is not: {file}: {error.strerror}"
        ) from error


def _show(done: Rewrite, dst: str, options: RewriteOptions) -> None:
    from fusion.saved_model.table_files.keep import total_bytes

    out = console()
    report, is_stock = done.report, options.target == "stock"
    out.print(cell(totals(report, "made of fewer stock ops" if is_stock else "fused")))
    if (refusals := refusal_table(report)).row_count:
        out.print(refusals)
    if done.tables:
        size, count = total_bytes(done.tables), len({table.file for table in done.tables})
        out.print(cell(f"tables in files: {count}, {size / 1e6:.1f} MB"))
    elif options.has_table_files:
        least = options.least_table_bytes
        out.print(cell(f"tables in files: none has --table-bytes ({least}) and can be one"))
    if done.packed:
        out.print(packed_table(done.packed))
    elif not options.table_dtypes().is_plain:
        least = options.least_table_bytes
        out.print(cell(f"packed tables: no float32 table has --table-bytes ({least})"))
    is_packed = any(not table.refusal for table in done.packed)
    if done.runtimes is None or not (report.fused_count or done.tables or is_packed):
        out.print(cell(f"nothing was rewritten: {dst} is a copy"))
        return
    verification = done.verification
    checked = "not verified" if verification is None else f"verified: {verification.summary()}"
    out.print(cell(checked))
    if is_packed and verification is not None:
        out.print(deviation_table(verification))
    if done.unchecked:
        count, where = len(done.unchecked), "named in fusion.json"
        out.print(cell(f"not compared: {count} functions that no signature runs, {where}"))
    if report.newer:
        newer = ", ".join(report.newer)
        out.print(cell(f"newer than TensorFlow {done.runtimes.first}, in SRC too: {newer}"))
    load = _stock_load(done.runtimes) if is_stock else f"{_FUSED_LOAD}, in {done.runtimes}"
    out.print(cell(f"wrote {dst}; {load}"))


def _stock_load(runtimes: Runtimes) -> str:
    """Returns what it takes to load a model of stock ops."""
    from fusion.passes.graph.runtime_ops import running_release

    release = "" if runtimes.first == running_release() else f", {runtimes.first} or newer"
    condition = ", and loads where SRC does" if runtimes.need_source else ""
    return f"it needs TensorFlow alone{release}{condition}"
