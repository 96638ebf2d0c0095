"""Results of lookups as pictures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.case import Row, Value, middle
from benchmarks.lookups.workloads import RATIOS, TIMES

Results = Mapping[str, Mapping[str, Any]]
Draw = Callable[[Any], None]

#: What the headlines call programs.
_TITLES = {
    ("criteo26", "dim16"): "26 columns, one id each",
    ("multihot26", "dim16"): "26 columns, 0 to 5 ids each",
    ("recom-micro", "columns100"): "100 bucketized numbers",
    ("recom-e", "model"): "a whole model, 1,000 columns",
    ("training26", "dim16"): "26 columns with gradients",
    ("deepfm", "sgd"): "a DeepFM training step, SGD",
    ("deepfm", "adagrad"): "a DeepFM training step, Adagrad",
}

#: By batch size only where there are at least this many of them.
_MIN_POINTS = 2


class _Point(NamedTuple):
    """A batch of a program, with the workload's own ids."""

    workload: str
    program: str
    batch: int
    values: Mapping[str, Value]


def plot(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Draws what the results allow into PNG files of a folder.

    Returns:
        File names, and what each shows.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = []
    for name, title, draw in _pictures(results):
        figure, axes = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
        draw(axes)
        axes.set_title(title, fontsize="medium")
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside right upper", fontsize="small")
        figure.savefig(folder / name, dpi=120)
        pyplot.close(figure)
        found.append((name, title))
    return found


def _points(results: Results, table: str) -> list[_Point]:
    return [
        _Point(name, str(row.key["program"]), int(row.key["batch"]), row.values)
        for name, result in results.items()
        for row in result["rows"]
        if row.table == table and row.key["draw"] == "base"
    ]


def _pictures(results: Results) -> Iterator[tuple[str, str, Draw]]:
    """Yields file name, title and what draws into the axes."""
    ratios, times = _points(results, RATIOS), _points(results, TIMES)
    for (workload, program), found in itertools.groupby(ratios, lambda one: one[:2]):
        points = [*found]
        if len(points) >= _MIN_POINTS:
            title = f"{workload} {program}: fusion's speedup by batch"
            yield f"speedup-{workload}-{program}.png", title, _speedup(points)
    if bars := _headlines(results, ratios):
        yield "headlines.png", "Times as fast as stock TensorFlow, whose line is at 1", _bars(bars)
    if times:
        rows: Iterator[Row] = (row for one in results.values() for row in one["rows"])
        memory = next(row.values for row in rows if "all threads, GB/s" in row.values)
        title = "Least traffic over fusion's time, and the memory's rate"
        yield "bandwidth.png", title, _bandwidth(times, memory)
    for kind, label in (("columns", "columns"), ("ids", "ids per row"), ("dim", "dim")):
        if linear := [*_linear(times, kind)]:
            title = f"Cost by {label} (the dashed lines are linear)"
            yield f"linear-{kind}.png", title, _cost(sorted(linear), label)


def _headlines(results: Results, ratios: Sequence[_Point]) -> list[tuple[str, Value]]:
    """Title and ratio to stock of each headline, if they were all measured of one commit."""
    commits = {one.get("commit") for one in results.values()}
    if len(commits) != 1 or not all(commits):
        return []
    return [
        (f"{_TITLES[one[:2]]}, batch {one.batch:,}", one.values["over stock"])
        for one in ratios
        if results[one.workload]["options"].get("headlines")
    ]


def _ends(value: Value) -> tuple[float, float]:
    if isinstance(value, Mapping):
        return value["low"], value["high"]
    return middle(value), middle(value)


def _bars(headlines: Sequence[tuple[str, Value]]) -> Draw:
    def draw(axes: Any) -> None:
        by_ratio = sorted(headlines, key=lambda pair: middle(pair[1]))
        titles = [title for title, _ in by_ratio]
        medians = [middle(ratio) for _, ratio in by_ratio]
        ends = [_ends(ratio) for _, ratio in by_ratio]
        below = [one - low for one, (low, _) in zip(medians, ends, strict=True)]
        above = [high - one for one, (_, high) in zip(medians, ends, strict=True)]
        bars = axes.barh(titles, medians, xerr=[below, above], ecolor="gray", color="tab:green")
        axes.bar_label(bars, [f"{median:.1f}x" for median in medians], padding=4)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.margins(x=0.15)

    return draw


def _speedup(points: Sequence[_Point]) -> Draw:
    def draw(axes: Any) -> None:
        for side in dict.fromkeys(k for one in points for k in one.values if k.startswith("over")):
            own = [(one.batch, one.values[side]) for one in points if side in one.values]
            batches = [batch for batch, _ in own]
            axes.plot(batches, [middle(ratio) for _, ratio in own], "o-", label=side)
            low, high = zip(*(_ends(ratio) for _, ratio in own), strict=True)
            axes.fill_between(batches, low, high, alpha=0.2)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("batch")
        axes.set_ylabel("times faster, in the graph")
        axes.set_ylim(bottom=0)

    return draw


def _bandwidth(times: Sequence[_Point], memory: Mapping[str, Value]) -> Draw:
    def draw(axes: Any) -> None:
        workloads = dict.fromkeys(one.workload for one in times)
        for workload, marker in zip(workloads, itertools.cycle("ospD^v<>*XP"), strict=False):
            own = [one.values for one in times if one.workload == workload]
            xs, ys = ([middle(one[name]) for one in own] for name in ("MB", "GB/s"))
            axes.plot(xs, ys, marker, markersize=4, label=workload)
        sums = [
            (middle(one.values["MB"]), middle(one.values["MB"]) / middle(one.values["row_sums"]))
            for one in times
            if "row_sums" in one.values
        ]
        if sums:
            axes.plot(*zip(*sums, strict=True), "k_", label="best random-row sums")
        for name, style in (("one thread", ":"), ("all threads", "--")):
            rate = middle(memory[f"{name}, GB/s"])
            axes.axhline(rate, color="black", linestyle=style, linewidth=0.8)
            where: Any = ("axes fraction", "data")
            axes.annotate(
                f"in a row, {name}", (0.01, rate), fontsize="x-small", xycoords=where, va="bottom"
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("least traffic, MB")
        axes.set_ylabel("GB/s")

    return draw


def _linear(times: Sequence[_Point], kind: str) -> Iterator[tuple[int, float, float]]:
    """Yields, of the programs of `linear` that differ in one number, that number and both times."""
    for one in times:
        match = re.fullmatch(rf"{kind}(\d+)", one.program)
        if match and one.workload == "linear":
            yield int(match[1]), middle(one.values["stock"]), middle(one.values["fusion"])


def _cost(points: Sequence[tuple[int, float, float]], label: str) -> Draw:
    def draw(axes: Any) -> None:
        numbers, *sides = zip(*points, strict=True)
        for side, times in zip(("stock", "fusion"), sides, strict=True):
            (line,) = axes.plot(numbers, times, "o-", label=side)
            linear = [times[-1] * number / numbers[-1] for number in numbers]
            axes.plot(numbers, linear, "--", color=line.get_color(), linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("ms in the graph")

    return draw
