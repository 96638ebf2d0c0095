"""`fusion rewrite`: a model with fused lookups from one without."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.command import Command, FiniteRange, recorded_inputs, timeout
from fusion.cli.json_output import document, json_option, show_json
from fusion.cli.output_file import check_output_file, write_output_file
from fusion.cli.report import (
    cell,
    console,
    deviation_table,
    packed_table,
    refusal_table,
    show_table,
    show_totals,
    table_fields,
)
from fusion.cli.require import Requirement, required
from fusion.printable import counted
from fusion.saved_model.model.source import find_model
from fusion.saved_model.model.staging import check_destination

if TYPE_CHECKING:
    from fusion.saved_model import Rewrite, RewriteOptions
    from fusion.saved_model.rewriting.manifest import Runtimes

_DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
_FUSED_LOAD = "run `import fusion` before loading it"


def _check(
    src: str, dst: str, report_file: str | None, table_dtypes: tuple[str, ...], **_: Any
) -> None:
    check_output_file(report_file, "--report")
    _by_name(table_dtypes)
    check_destination(find_model(src), dst)


@click.command(cls=Command, check=_check)
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
    type=click.Choice(_DTYPES),
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
    type=FiniteRange(min=0),
    metavar="X",
    help="With dtypes, what outputs may differ by, as a share of their largest element.  "
    "[default: what they differ by is only shown]",
)
@click.option(
    "--request-inputs",
    metavar="A,B",
    help="Inputs that describe the request, and not a candidate: signatures are added, "
    "NAME_request and NAME_requests, that take one row of these for a request, and compute what "
    "depends on them alone once. Of Examples, NAME_elwc takes ExampleListWithContexts. `auto`: "
    "those that have the same row throughout each batch of --inputs, as `fusion inspect "
    "--requests` shows.",
)
@click.option(
    "--signature",
    metavar="NAME",
    help="With --request-inputs, the signature.  [default: the only one, or serving_default]",
)
@click.option(
    "--exact",
    is_flag=True,
    help="With --request-inputs, the new signatures have to give the original's bits.",
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
@required("If fewer are, nothing is written, and the exit status is 1.")
@click.option(
    "--report",
    "report_file",
    metavar="FILE",
    help="Also write to this file what --json prints.",
)
@json_option
def rewrite(
    src: str,
    dst: str,
    no_verify: bool,
    outputs: str | None,
    report_file: str | None,
    table_dtypes: tuple[str, ...],
    request_inputs: str | None,
    requirement: Requirement | None,
    as_json: bool,
    **rest: Any,
) -> None:
    """Write to DST the SavedModel or frozen graph SRC with its embedding columns fused.

    DST's signatures are compared with SRC's on generated or recorded inputs, to the bit, before it
    appears.
    SRC is never changed. Run `import fusion` before loading DST; with --target stock it loads
    wherever SRC does, and what is fused in SRC becomes stock ops again.
    """
    from fusion.cli.progress import Checking, step_bar
    from fusion.saved_model import RewriteOptions, rewrite_saved_model

    names = None if outputs is None else _names(outputs)
    chosen = tuple(_names(request_inputs or ""))
    rest["request_inputs"] = "auto" if request_inputs == "auto" else chosen
    try:
        options = RewriteOptions(
            verify=not no_verify, outputs=names, dtypes_by_name=_by_name(table_dtypes), **rest
        )
    except ValueError as error:  # of the other options click knows what they may be
        message = str(error).removeprefix("fuse_saved_model: ")
        hints = {"tables": "--tables", "dtype": "--dtype", "max_deviation": "--max-deviation"}
        hints["request_inputs"] = "--request-inputs"
        hint = hints.get(message.partition(" ")[0], "--runtime")
        raise click.BadParameter(message, param_hint=hint) from None
    verb = "made of fewer stock ops" if options.target == "stock" else "fused"
    with step_bar() as bar:
        observer = bar if requirement is None else Checking(bar, requirement, verb)
        done = rewrite_saved_model(src, dst, options, observer)
    fields = _fields(done, dst)
    if report_file is not None:
        _write_report(report_file, fields)
    if as_json:
        show_json(fields)
    else:
        _show(done, dst, options, verb)


def _names(text: str) -> list[str]:
    """Splits A,B."""
    return [name for name in text.split(",") if name]


def _by_name(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Splits NAME=DTYPE; names may have a = in them."""
    pairs = []
    for text in texts:
        name, equals, dtype = text.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=DTYPE", param_hint="--table-dtype")
        if dtype not in _DTYPES:
            message = f"{dtype!r} is not one of {', '.join(_DTYPES)}"
            raise click.BadParameter(message, param_hint="--table-dtype")
        pairs.append((name, dtype))
    return tuple(pairs)


def _fields(done: Rewrite, dst: str) -> dict[str, Any]:
    """Returns what was done, ready for JSON."""
    verification = done.verification
    return {
        **done.report.to_dict(),
        "destination": dst,
        "runtimes": None if done.runtimes is None else str(done.runtimes),
        "verification": None if verification is None else verification.to_dict(),
        "unchecked_functions": list(done.unchecked),
        "tables": [table_fields(table) for table in done.tables],
        "packed_tables": [table.to_dict() for table in done.packed],
        "request_signatures": [asdict(one) for one in done.requests],
        "requests": None if done.repeats is None else done.repeats.to_dict(),
    }


def _write_report(file: str, fields: dict[str, Any]) -> None:
    try:
        write_output_file(file, (document(fields) + "\n").encode())
    except click.ClickException as error:
        message = f"the model is written, but its report is not: {error.format_message()}"
        raise click.ClickException(message) from error


def _show(done: Rewrite, dst: str, options: RewriteOptions, verb: str) -> None:
    from fusion.saved_model.table_files.keep import total_bytes

    out = console()
    report, is_stock = done.report, options.target == "stock"
    show_totals(out, report, verb)
    if (refusals := refusal_table(report)).row_count:
        show_table(out, refusals)
    if (repeats := done.repeats) is not None:
        names = ", ".join(repeats.names)
        out.print(cell(f"{names}: the same row throughout each batch of {repeats.seen}"))
    for one in done.requests:
        repeated = f"{counted(len(one.meetings), 'tensor')} repeated for candidates"
        out.print(cell(f"signature {one.name}: {', '.join(one.names)} once; {repeated}"))
    if done.tables:
        size, count = total_bytes(done.tables), len({table.file for table in done.tables})
        out.print(cell(f"tables in files: {count}, {size / 1e6:.1f} MB"))
    elif options.has_table_files:
        min_bytes = options.least_table_bytes
        out.print(cell(f"tables in files: none has --table-bytes ({min_bytes}) and can be one"))
    if done.packed:
        show_table(out, packed_table(done.packed))
    elif not options.table_dtypes().is_plain:
        min_bytes = options.least_table_bytes
        out.print(cell(f"packed tables: no float32 table has --table-bytes ({min_bytes})"))
    is_packed = any(not table.refusal for table in done.packed)
    # A graph of stock ops is a copy unless something changed; reports have no front of these.
    is_fused = is_stock or any(column.fused for column in report.lookups)
    is_fused |= any(one.is_replaced for one in report.front)
    if done.runtimes is None or not (is_fused or done.tables or is_packed or done.requests):
        out.print(cell(f"nothing was rewritten: {dst} is a copy"))
        return
    verification = done.verification
    checked = "not verified" if verification is None else f"verified: {verification.summary()}"
    out.print(cell(checked))
    if is_packed and verification is not None:
        show_table(out, deviation_table(verification))
    if done.unchecked:
        functions, where = counted(len(done.unchecked), "function"), "named in fusion.json"
        out.print(cell(f"not compared: {functions} that no signature runs, {where}"))
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
