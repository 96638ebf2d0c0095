"""Results as Markdown: tables of rows, bounds met and missed, and how everything was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.case import DETAILS, Row, Value, middle
from benchmarks.lookups.workloads import RATIOS

Results = Mapping[str, Mapping[str, Any]]
"""The results of a folder, by case; see `runner.load`."""

#: Cores that others kept busy, above which times are doubtful.
_MAX_BUSY = 0.1
BUSY = "**other programs were running, do not trust the times**"

_HOW = """\
Sides run one after another in turn, in one process, each with tables and inputs of its own. What
they give is compared first. Of numbers of several processes there are the median, the least and the
largest; of those of one process the median and the quartiles over its rounds, or a number alone.

Of lookups and of steps of models, a time in the graph is net of a graph that only makes the same
inputs, and a ratio is a side's time over fusion's. End to end means calls that get every tensor as
an argument, measured in the first process alone. The limit is the least traffic over the rate at
which all threads read memory in a row; headroom is stock's time over it. A time below the limit
comes from caches, and one that even the caches could not give is marked.

- **stock**: feature columns in tf_keras DenseFeatures, or safe_embedding_lookup_sparse and concat.
- **stock_best**: a gather written by hand where every column has one id per row, else
  `allow_fast_lookup=True`.
- **fusion**: the same Python function as stock, traced and run for the first time under
  `fusion.fused()`.
- **torch**: `embedding_bag` per column and `cat`. **fbgemm**: table-batched bags, one call.
- **row_sums**: a kernel that adds up the same rows and does nothing else, on all threads.
"""


def render(results: Results, plots: Sequence[tuple[str, str]] = ()) -> str:
    """The report.

    Args:
        results: what was measured.
        plots: file names, and what each shows.
    """
    parts = ["# Benchmarks", _environment(results), _HOW, *_bounds(results)]
    if plots:
        parts.append("## Plots")
        parts += [f"![{title}]({name})\n\n{title}" for name, title in plots]
    for name, result in results.items():
        parts.append(f"## {name}\n\n{result['about']}")
        parts += tables([row for row in result["rows"] if not row.table.startswith(DETAILS)])
        parts += [f"**Failed**: {failure}" for failure in result.get("failures", ())]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _environment(results: Results) -> str:
    shared: dict[str, list[str]] = {}
    for name, result in results.items():
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        count = result["processes"]
        notes = [f"{result['date']}, {count} process{'es' * (count > 1)}, {machine}"]
        notes += [BUSY] if is_busy(result) else []
        notes += ["**a quick run**"] if result["options"].get("quick") else []
        scale = result["options"].get("scale", 1.0)
        notes += [f"rows times {scale}"] if scale != 1.0 else []
        shared.setdefault("; ".join(notes), []).append(name)
    return "\n".join(f"- {', '.join(names)}: {note}" for note, names in shared.items())


def is_busy(result: Mapping[str, Any]) -> bool:
    """Whether other programs kept the processor from what was measured."""
    return float(result["busy_elsewhere"]) > _MAX_BUSY


def _bounds(results: Results) -> Iterator[str]:
    """Yields what every bound became."""
    lines = [
        [name, row.title, value, bound, cell(row.values[value]), "met" if met else "**missed**"]
        for name, result in results.items()
        for row in result["rows"]
        for value, bound, met in row.verdicts()
    ]
    if lines:
        count = sum(line[-1] == "met" for line in lines)
        yield f"## Bounds\n\n{count} met, {len(lines) - count} missed."
        yield markdown(["case", "", "value", "bound", "measured", ""], lines)


def is_met(result: Mapping[str, Any]) -> bool:
    """Whether nothing failed, and no bound is missed."""
    verdicts = (is_met for row in result["rows"] for _, _, is_met in row.verdicts())
    return not result.get("failures") and all(verdicts)


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a table of all rows that have the same caption and keys, and their notes."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.table, *row.key), []).append(row)
    for (caption, *keys), same in groups.items():
        if caption:
            yield f"{caption}:"
        names = dict.fromkeys(name for row in same for name in row.values)
        yield markdown([*keys, *names], [_line(row, [*names]) for row in same])
        by_note: dict[str, list[str]] = {}
        for row in same:
            for note in row.notes:
                by_note.setdefault(note, []).append(row.title)
        if by_note:
            of_all = {note: titles for note, titles in by_note.items() if len(titles) == len(same)}
            yield "\n".join(
                f"- {'' if note in of_all else ', '.join(titles) + ': '}{note}"
                for note, titles in by_note.items()
            )


def _line(row: Row, names: Sequence[str]) -> list[str]:
    missed = {name for name, _, is_met in row.verdicts() if not is_met}
    cells = [
        (cell(row.values[name]) if name in row.values else "-")
        + (", **missed**" if name in missed else "")
        for name in names
    ]
    keys = (f"{one:,}" if isinstance(one, int) else str(one) for one in row.key.values())
    return [*keys, *cells]


def cell(value: Value) -> str:
    """A text, or a number and its range, with three digits that count."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        return _number(value)
    low, high = _number(value["low"]), _number(value["high"])
    shown = _number(value["median"])
    return shown if low == high else f"{shown} ({low} to {high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def reproduced(results: Results, earlier: Results) -> Iterator[str]:
    """Yields a line for each ratio to stock in both: whether the earlier range has it."""
    for name, result in results.items():
        before = {row.title: row for row in earlier[name]["rows"] if row.table == RATIOS}
        for row in result["rows"]:
            if row.table == RATIOS and (old := before.get(row.title)):
                now, range_ = row.values["over stock"], old.values["over stock"]
                within = range_["low"] <= middle(now) <= range_["high"]
                yield (
                    f"{name} {row.title}: {cell(now)}, {'within' if within else 'outside of'} "
                    f"the {cell(range_)} of the README's {earlier[name]['processes']} processes "
                    f"({earlier[name]['date']})"
                )
