"""`fusion bench`: latency and throughput of a model, or of two side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from fusion.cli.command import (
    Command,
    FiniteRange,
    check_model,
    recorded_inputs,
    timeout,
    tolerance,
)
from fusion.cli.json_output import document, json_option, show_json
from fusion.cli.output_file import check_output_file, drawing, write_output_file
from fusion.cli.report import cell, console, plain_table, say, show_table

if TYPE_CHECKING:
    from fusion.saved_model import BenchReport, Measurement


def _numbers(text: str) -> tuple[int, ...]:
    """Returns different whole numbers from 1 on, which have commas between them."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is not a list of whole numbers such as 1,64"
        raise click.BadParameter(message) from None
    if min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise click.BadParameter(f"{text!r} must have different numbers, each at least 1")
    return numbers


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Returns different pairs of whole numbers from 1 on, as of 1x200,8x25."""
    found = [re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", part) for part in text.split(",")]
    pairs = [(int(one[1]), int(one[2])) for one in found if one is not None]
    if len(pairs) < len(found) or len({*pairs}) < len(pairs):
        message = f"{text!r} is not a list of different requests and candidates such as 1x200,8x25"
        raise click.BadParameter(message)
    return tuple(pairs)


def _check(
    model: str,
    model2: str | None,
    batch: tuple[int, ...] | None,
    requests: tuple[tuple[int, int], ...] | None,
    inputs: str | None,
    png: str | None,
    report_file: str | None,
    **_: Any,
) -> None:
    if requests is not None and batch is not None:
        raise click.UsageError("--requests says how many examples a call has; leave --batch out")
    if inputs is not None and batch is not None:
        raise click.UsageError("--inputs has a batch size of its own; leave --batch out")
    check_output_file(report_file, "--report")
    check_output_file(png, "--png")
    for path in (model, model2):
        if path is not None:
            check_model(path)


@click.command(cls=Command, check=_check)
@click.argument("model")
@click.argument("model2", required=False)
@click.option(
    "--batch", type=_numbers, metavar="N,...", help="Examples per call.  [default: 1,64,512,4096]"
)
@click.option(
    "--requests",
    type=_pairs,
    metavar="RxN,...",
    help="Calls of R requests with N candidates each, as 1x200,8x25: of MODEL with a row of its "
    "request for each candidate, of MODEL2 (or MODEL, if that is alone) by the signatures that "
    "`fusion rewrite --request-inputs` has added.",
)
@click.option(
    "--clients",
    type=_numbers,
    metavar="N,...",
    default="1",
    show_default=True,
    help="Threads that call at the same time, each as soon as its last call is done.",
)
@click.option("--signature", metavar="NAME", help="The signature, if not the default or only one.")
@click.option("--tags", metavar="TAG,...", help="Its meta graph's tags, if not `serve`.")
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="How long each model is called with each batch and number of clients, in each way.",
)
@recorded_inputs(
    "Inputs instead of generated ones: an npz file of arrays, or the first batch of a "
    "TFRecord file of Examples, as in `fusion verify`."
)
@tolerance("What an element of two models' outputs may differ by, as in `fusion verify`.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Size of TensorFlow's thread pools and of fusion's; as many as processors by default.",
)
@timeout("Seconds that loading and checking may take, beside the measuring.")
@click.option("--png", metavar="FILE", help="Also draw latency and throughput by batch.")
@click.option(
    "--report",
    "report_file",
    metavar="FILE",
    help="Also write to this file what --json prints: all numbers.",
)
@json_option
def bench(
    model: str,
    model2: str | None,
    batch: tuple[int, ...] | None,
    requests: tuple[tuple[int, int], ...] | None,
    inputs: str | None,
    tags: str | None,
    png: str | None,
    report_file: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure latency and throughput of a signature of the SavedModel MODEL, or of a frozen graph.

    In the graph, that is in a Session that gets and gives nothing, and end to end, from Python with
    NumPy arrays. With MODEL2 both take turns in one process after their outputs were compared; the
    column `times as fast` is MODEL2's throughput over MODEL's, with its range over the turns, and
    the last line says whether that is a clear difference. The last column has the shares of parsing
    Examples, making ids, lookups, and the dense rest in the time that ops of the graph take. Each
    model runs as its file has it: to measure what fusion brings, `fusion rewrite` it first.
    """
    draw = _drawer(png)
    from fusion.saved_model import bench_models
    from fusion.saved_model.bench import DEFAULT_BATCHES

    with Console(stderr=True).status("starting") as status:
        report = bench_models(
            model,
            model2,
            batches=batch or DEFAULT_BATCHES,
            requests=requests or (),
            inputs=inputs,
            tags=None if tags is None else tags.split(","),
            progress=lambda line: status.update(cell(line)),
            **options,
        )
    if not as_json:
        show_table(console(), _table(report))
        for note in _notes(report):
            say(note)
    if report_file is not None:
        write_output_file(report_file, (document(report.to_dict()) + "\n").encode())
    if png is not None and draw is not None:
        write_output_file(png, draw(report))
        if not as_json:
            say(f"wrote {png}")
    if as_json:
        show_json(report.to_dict())


def _drawer(png: str | None) -> Callable[[BenchReport], bytes] | None:
    """Returns what draws, found before the work whose result it is to draw."""
    if png is None:
        return None
    with drawing("--png"):
        from fusion.saved_model.bench.draw import draw_report
    return draw_report


def _table(report: BenchReport) -> Table:
    """Returns a table with a row for each measurement."""
    from fusion.saved_model.bench.report import batch_text, short_names

    two, requests = len(report.models) > 1, bool(report.request_inputs)
    names = short_names(report.models)
    table = plain_table(
        *("", "batch", "clients"),
        *(("model",) if two else ()),
        *(("signature",) if requests else ()),
        *("p50 ms", "p90 ms", "p99 ms", "examples/s", "calls"),
        *(("times as fast",) if two else ()),
        "% parse/ids/lookups/dense",
    )
    for column in table.columns[1:]:
        column.justify = "left" if column.header in ("model", "signature") else "right"
    for m in report.measurements:
        table.add_row(
            *(m.way, batch_text(m.batch, m.requests), f"{m.clients}"),
            *((cell(names[m.model]),) if two else ()),
            *((cell(m.signature),) if requests else ()),
            *(f"{ms:.3g}" for ms in (m.p50_ms, m.p90_ms, m.p99_ms)),
            *(f"{m.examples_per_s:,.0f}", f"{m.calls:,}"),
            *((_times(report, m),) if two else ()),
            "/".join(f"{share * 100:.0f}" for share in m.parts.values()),
        )
    return table


def _times(report: BenchReport, measurement: Measurement) -> str:
    ratio = report.ratio(measurement)
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _bytes(report: BenchReport) -> str:
    """Returns the line with the bytes of the inputs of calls of requests."""
    from fusion.saved_model.bench.report import batch_text

    sizes: dict[str, dict[int, int]] = {}
    for m in report.measurements:
        sizes.setdefault(batch_text(m.batch, m.requests), {})[m.model] = m.input_bytes
    each = (f"{batch}: {size[0]:,} -> {size[1]:,}" for batch, size in sizes.items())
    return f"bytes of the inputs of a call: {'; '.join(each)}"


def _notes(report: BenchReport) -> list[str]:
    """Returns the lines below the table: what was measured, and on what."""
    machine = report.machine
    notes = [f"signature {report.signature}, {report.inputs} inputs"]
    if report.request_inputs:
        notes += [f"once a request: {', '.join(report.request_inputs)}", _bytes(report)]
    notes += [] if report.outputs is None else [f"outputs compared: {report.outputs}"]
    return [
        *notes,
        f"{machine['processor']}, {machine['cores']} cores, TensorFlow {machine['tensorflow']}; "
        f"other programs kept {report.busy_elsewhere:.1f} cores busy",
        *((report.conclusion(),) if report.ratios else ()),
    ]
