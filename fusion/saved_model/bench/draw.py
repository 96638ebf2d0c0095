"""Drawing measurements by batch size as PNG. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from fusion.printable import printable
from fusion.saved_model.bench.report import (
    END_TO_END,
    IN_GRAPH,
    BenchReport,
    Measurement,
    short_names,
)

_STYLES = ("o-", "s--")
"""Of the first model, and of the second."""


def draw_report(report: BenchReport) -> bytes:
    """Returns a PNG: latency and throughput by batch size, in the graph and end to end.

    There is a line for each model and number of clients, and of requests in a call: of latencies
    the median, with all up to the 99th percentile shaded.
    """
    figure = Figure(figsize=(10.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharex=True)
    for row, way in enumerate((IN_GRAPH, END_TO_END)):
        for axes, draw in zip(grid[row], (_latency, _throughput), strict=True):
            for label, style, color, points in _lines(report, way):
                draw(axes, points, label=label, style=style, color=color)
            _finish(axes, way, report)
    for axes in grid[-1]:
        axes.set_xlabel("batch")
    title = printable(f"signature {report.signature}")
    figure.suptitle(title, fontsize="medium", parse_math=False)
    handles, labels = grid[0][0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _lines(report: BenchReport, way: str) -> Iterator[tuple[str, str, str, list[Measurement]]]:
    """Yields label, style, color and points of each line."""
    kinds = dict.fromkeys((m.clients, m.requests) for m in report.measurements)
    for index, (count, requests) in enumerate(kinds):
        for model, name in enumerate(short_names(report.models)):
            load = (way, count, requests, model)
            points = [
                m for m in report.measurements if (m.way, m.clients, m.requests, m.model) == load
            ]
            signature = f" {points[0].signature}" if requests else ""
            of = f", {requests} request{'s' * (requests > 1)}" if requests else ""
            label = printable(f"{name}{signature}{of}, {count} client{'s' * (count > 1)}")
            color = f"C{index * len(report.models) + model}"
            yield label, _STYLES[model], color, sorted(points, key=lambda m: m.batch)


def _latency(axes: Axes, points: list[Measurement], *, label: str, style: str, color: str) -> None:
    batches = [m.batch for m in points]
    middle, high = [m.p50_ms for m in points], [m.p99_ms for m in points]
    axes.plot(batches, middle, style, label=label, color=color)
    axes.fill_between(batches, middle, high, color=color, alpha=0.15)
    axes.set_ylabel("latency in ms, p50 to p99")


def _throughput(
    axes: Axes, points: list[Measurement], *, label: str, style: str, color: str
) -> None:
    batches, rates = [m.batch for m in points], [m.examples_per_s for m in points]
    axes.plot(batches, rates, style, label=label, color=color)
    axes.set_ylabel("examples per second")


def _finish(axes: Axes, way: str, report: BenchReport) -> None:
    batches = sorted({m.batch for m in report.measurements})
    axes.set_title(way, fontsize="medium")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.grid(visible=True, alpha=0.3)
