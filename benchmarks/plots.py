"""Results as pictures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
Case = Mapping[str, Any]

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


def plot(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Draws what the results allow.

    Args:
        results: as `report.load` gives them.
        folder: where the PNG files go.

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


def _pictures(results: Results) -> Iterator[tuple[str, str, Callable[[Any], None]]]:
    """Yields file name, title and what draws into the axes."""
    for workload in results:
        for program, cases in _programs(results[workload]).items():
            if len(cases) >= _MIN_POINTS:
                title = f"{workload} {program}: fusion's speedup by batch"
                yield f"speedup-{workload}-{program}.png", title, _speedup(cases)
    if bars := _headlines(results):
        yield "headlines.png", "Times as fast as stock TensorFlow, whose line is at 1", _bars(bars)
    rates = [(name, case) for name in results for case in _base(results[name])]
    if rates:
        memory = next(one["memory"] for one in results.values() if "memory" in one)
        title = "Least traffic over fusion's time, and the memory's rate"
        yield "bandwidth.png", title, _bandwidth(rates, memory)
    for kind, label in (("columns", "columns"), ("ids", "ids per row"), ("dim", "dim")):
        if points := _linear(results, kind):
            title = f"Cost by {label} (the dashed lines are linear)"
            yield f"linear-{kind}.png", title, _cost(points, label)


def _headlines(results: Results) -> list[tuple[str, Mapping[str, float]]]:
    """Title and ratio to stock of each headline, if they were all measured of one commit."""
    commits = {one.get("commit") for one in results.values()}
    if len(commits) != 1 or not all(commits):
        return []
    return [
        (f"{_TITLES[name, case['program']]}, batch {case['batch']:,}", case["ratios"]["stock"])
        for name, result in results.items()
        if result.get("headlines")
        for case in _base(result)
    ]


def _bars(headlines: Sequence[tuple[str, Mapping[str, float]]]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        by_ratio = sorted(headlines, key=lambda pair: pair[1]["median"])
        titles = [title for title, _ in by_ratio]
        ratios = [ratio for _, ratio in by_ratio]
        medians = [ratio["median"] for ratio in ratios]
        below = [ratio["median"] - ratio["low"] for ratio in ratios]
        above = [ratio["high"] - ratio["median"] for ratio in ratios]
        bars = axes.barh(titles, medians, xerr=[below, above], ecolor="gray", color="tab:green")
        axes.bar_label(bars, [f"{median:.1f}x" for median in medians], padding=4)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.margins(x=0.15)

    return draw


def _base(result: Mapping[str, Any]) -> list[Case]:
    return [case for case in result.get("cases", ()) if case["variant"] == "base"]


def _programs(result: Mapping[str, Any]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in _base(result):
        found.setdefault(case["program"], []).append(case)
    return found


def _speedup(cases: Sequence[Case]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        for side in cases[0]["ratios"]:
            points = [(one["batch"], one["ratios"][side]) for one in cases if side in one["ratios"]]
            batches = [batch for batch, _ in points]
            axes.plot(batches, [ratio["median"] for _, ratio in points], "o-", label=f"over {side}")
            axes.fill_between(
                batches,
                [ratio["low"] for _, ratio in points],
                [ratio["high"] for _, ratio in points],
                alpha=0.2,
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("batch")
        axes.set_ylabel("times faster, in the graph")
        axes.set_ylim(bottom=0)

    return draw


def _bandwidth(
    rates: Sequence[tuple[str, Case]], memory: Mapping[str, Mapping[str, float]]
) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        workloads = dict.fromkeys(name for name, _ in rates)
        for workload, marker in zip(workloads, itertools.cycle("ospD^v<>*XP"), strict=False):
            points = [
                (one["traffic"] / 1e6, one["gb_per_s"]) for name, one in rates if name == workload
            ]
            axes.plot(*zip(*points, strict=True), marker, markersize=4, label=workload)
        sums = [
            (
                one["traffic"] / 1e6,
                one["traffic"] / one["sides"]["row_sums"]["net_ms"]["median"] / 1e6,
            )
            for _, one in rates
            if "row_sums" in one["sides"]
        ]
        if sums:
            axes.plot(*zip(*sums, strict=True), "k_", label="best random-row sums")
        for name, style in (("one_thread", ":"), ("all_threads", "--")):
            rate = memory[name]["median"]
            axes.axhline(rate, color="black", linestyle=style, linewidth=0.8)
            axes.annotate(
                f"in a row, {name.replace('_', ' ')}",
                (0.01, rate),
                fontsize="x-small",
                xycoords=("axes fraction", "data"),
                va="bottom",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("least traffic, MB")
        axes.set_ylabel("GB/s")

    return draw


def _linear(results: Results, kind: str) -> list[tuple[int, Case]]:
    """The cases of the workload `linear` that differ in one number, by that number."""
    found = []
    for case in _base(results.get("linear", {})):
        if match := re.fullmatch(rf"{kind}(\d+)", case["program"]):
            found.append((int(match[1]), case))
    return sorted(found, key=lambda pair: pair[0])


def _cost(points: Sequence[tuple[int, Case]], label: str) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        numbers = [number for number, _ in points]
        for side in ("stock", "fusion"):
            times = [case["sides"][side]["net_ms"]["median"] for _, case in points]
            (line,) = axes.plot(numbers, times, "o-", label=side)
            linear = [times[-1] * number / numbers[-1] for number in numbers]
            axes.plot(numbers, linear, "--", color=line.get_color(), linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("ms in the graph")

    return draw
