"""What was measured of steps of training, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.markdown import table
from benchmarks.training.cases import MOST_GROWTH, ROWS_OF_BATCH

_LEGEND = (
    "Milliseconds are medians of rounds; ratios have the 10th and the 90th percentile of the "
    "rounds. `equal` is of losses and variables, slots included, after so many steps. `columns` "
    "and `updates` are those fused, of those that the pass found. The last columns say how "
    "many times a step allocates what a table has, as far as TensorFlow's profiler tells: from "
    "256 KiB on."
)
#: Cores that others kept busy, above which times are doubtful.
_MOST_BUSY = 0.1
_OPS, _REASONS = 15, 5


def is_met(one: Mapping[str, Any]) -> bool:
    """Whether a case is as fast as it should be, and its numbers as close."""
    is_fast = one["least"] is None or one["ratio"][1] >= one["least"]
    is_flat = "growth" not in one or one["growth"][1] <= MOST_GROWTH
    return is_fast and is_flat and not _copies(one) and bool(one["compared"]["close"])


def _copies(one: Mapping[str, Any]) -> bool:
    """Whether the fused step allocates what a table has, and its optimizer needs not."""
    is_traced = "traces" in one and one["optimizer"] in ROWS_OF_BATCH
    return is_traced and one["traces"]["fused"]["of_table_size"] > 0


def tables(result: Mapping[str, Any], profile: bool = False) -> Iterator[str]:
    """Yields a table of the cases, what is to be said of them, and of each its kinds of ops."""
    measured = result["training"]
    yield _LEGEND
    names = ["case", "stock ms", "fused ms", "ratio", "at least", "equal", "columns", "updates"]
    names += ["stock: table-sized allocations", "fused"]
    yield table(names, [_row(one) for one in measured])
    for one in measured:
        if notes := [*_notes(one)]:
            yield "\n".join([f"{one['title']}:", "", *(f"- {note}" for note in notes)])
    if profile:
        for one in measured:
            if "traces" in one:
                yield from _ops(one)


def _row(one: Mapping[str, Any]) -> list[str]:
    bound = "" if one["least"] is None else f"{one['least']:g}"
    if one["least"] is not None and one["ratio"][1] < one["least"]:
        bound += ", **missed**"
    return [
        one["title"],
        f"{one['stock_ms']:.2f}",
        f"{one['fused_ms']:.2f}",
        spread(one["ratio"]),
        bound,
        equal(one["compared"]),
        f"{one['fused_columns']} of {one['found_columns']}",
        f"{one['fused_updates']} of {one['found_updates']}",
        *(_allocated(one, name) for name in ("stock", "fused")),
    ]


def equal(found: Mapping[str, Any]) -> str:
    """How losses and variables compare, in a few words; see `measure.compared`."""
    most = max([found["losses_apart"], *(one["apart"] for one in found["apart"])])
    told = "yes" if found["equal"] else f"to {most:.0e}"
    return f"{told if found['close'] else f'**{told}**'}, {found['steps']} steps"


def _allocated(one: Mapping[str, Any], side: str) -> str:
    if "traces" not in one:
        return ""
    count = one["traces"][side]["of_table_size"]
    return f"{count:g}{', **missed**' if side == 'fused' and _copies(one) else ''}"


def _notes(one: Mapping[str, Any]) -> Iterator[str]:
    found = one["compared"]
    if one["columns"] < one["columns_asked"]:
        yield f"there was memory for {one['columns']} of {one['columns_asked']} tables"
    if one["busy_elsewhere"] > _MOST_BUSY:
        yield "**other programs were running, do not trust the times**"
    if one["failures"]:
        yield f"**the pass failed on {one['failures']} graphs**"
    if "control" in one:
        yield f"two stock models are equal to each other: {equal(one['control'])}"
    if found["first_step_apart"] is not None:
        apart = f"at most {found['losses_apart']:.0e} of the loss"
        yield f"losses are not equal from step {found['first_step_apart']} on, by {apart}"
    if found["apart"]:
        shown = ", ".join(f"{each['name']} by {each['apart']:.0e}" for each in found["apart"][:5])
        yield (
            f"{len(found['apart'])} of {found['variables']} variables are not equal, relative to "
            f"the largest element: {shown}"
        )
    if "growth" in one:
        is_met = one["growth"][1] <= MOST_GROWTH
        yield (
            f"fused, over tables of {one['reference_rows']:,} rows: {spread(one['growth'])}, at "
            f"most {MOST_GROWTH}{'' if is_met else ', **missed**'}"
        )
    for reason in one["reasons"][:_REASONS]:
        yield f"stays stock: {reason}"
    if (more := len(one["reasons"]) - _REASONS) > 0:
        yield f"stays stock: {more} more reasons"


def _ops(one: Mapping[str, Any]) -> Iterator[str]:
    """Yields the kinds of ops that take longest on either side; threads are added up."""
    yield (
        f"{one['title']}: milliseconds of a step by type of op, threads added up, and how many "
        "ops; without those of some microseconds, which TensorFlow does not trace."
    )
    sides = [one["traces"][name] for name in ("stock", "fused")]
    longest = {op for side in sides for op in [*side["milliseconds"]][:_OPS]}
    order = sorted(longest, key=lambda op: -max(side["milliseconds"].get(op, 0) for side in sides))
    rows = [[op, *(cell for side in sides for cell in _op_cells(side, op))] for op in order]
    totals = [cell for side in sides for cell in _totals(side)]
    yield table(["op", "stock ms", "ops", "fused ms", "ops"], [*rows, ["all ops", *totals]])


def _op_cells(side: Mapping[str, Any], op: str) -> list[str]:
    if op not in side["milliseconds"]:
        return ["", ""]
    return [f"{side['milliseconds'][op]:.3f}", f"{side['calls'][op]:g}"]


def _totals(side: Mapping[str, Any]) -> list[str]:
    return [f"{sum(side['milliseconds'].values()):.3f}", f"{sum(side['calls'].values()):g}"]


def spread(ratio: Sequence[float]) -> str:
    """A ratio of rounds: its median, and the two percentiles."""
    low, middle, high = (f"{one:.2f}" for one in ratio)
    return f"{middle} ({low} to {high})"
