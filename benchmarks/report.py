"""Results as Markdown: ratios, targets met and missed, and how everything was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.targets import TARGETS, Target
from benchmarks.training.tables import tables as training

Results = Mapping[str, Mapping[str, Any]]
"""What the files of a run hold, by workload."""

_SIDES = ("stock", "stock_best", "fusion", "torch", "fbgemm", "row_sums")

#: Cores that others kept busy, above which times are doubtful.
_MOST_BUSY = 0.1
_BUSY = "**other programs were running, do not trust the times**"

_HOW = """\
All sides run one after another in turn, in one process, each with tables and inputs of its own.
Outputs are compared with stock TensorFlow's first: bit for bit where nothing is weighted or
clipped, else within rounding. A time in the graph is the median of at least 20 runs, net of a graph
that only makes the same inputs; a ratio is the median over processes of the baseline's time over
fusion's, with the least and the largest of them. End to end means calls that get every tensor as an
argument, measured in the first process alone. The limit is the least traffic over the rate at which
all threads read memory in a row; a time below it comes from caches, and one that even the caches
could not give is marked.

- **stock**: feature columns in tf_keras DenseFeatures, or safe_embedding_lookup_sparse and concat.
- **stock_best**: a gather written by hand where every column has one id per row, else
  `allow_fast_lookup=True`.
- **fusion**: the same Python function as stock, traced and run for the first time under
  `fusion.fused()`.
- **torch**: `embedding_bag` per column and `cat`. **fbgemm**: table-batched bags, one call.
- **row_sums**: a kernel that adds up the same rows and does nothing else, on all threads.

The training steps of DeepFM, Wide & Deep and DLRM are not measured here.
"""


def load(folder: Path) -> dict[str, Any]:
    """The results of a run that lie in a folder, by workload."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "workload" in result:
            found[result["workload"]] = result
    return found


def find_case(results: Results, target: Target) -> Mapping[str, Any] | None:
    """The case that a target is about, None if it was not measured."""
    for case in results.get(target.workload, {}).get("cases", ()):
        key = (case["program"], case["batch"], case["variant"])
        if key == (target.program, target.batch, "base"):
            return case
    return None


def verdicts(results: Results) -> Iterator[tuple[Target, Mapping[str, float] | None, str]]:
    """Yields each target, the ratio measured and what became of it."""
    for target in TARGETS:
        case = find_case(results, target)
        ratio = None if case is None else case["ratios"].get(target.baseline)
        if ratio is None:
            absent = {} if case is None else case["absent"]
            yield target, None, absent.get(target.baseline, "not measured")
        elif results[target.workload]["quick"]:
            yield target, None, "a quick run is no measurement"
        else:
            yield target, ratio, "met" if ratio["median"] >= target.least else "**missed**"


def headlines(results: Results) -> str:
    """Plain lines of every case: its ratios to all baselines; then the targets."""
    lines = []
    absent: dict[str, None] = {}
    for name, result in results.items():
        for case in result.get("cases", ()):
            net = case["sides"]["fusion"]["net_ms"]["median"]
            ratios = ", ".join(
                f"{ratio['median']:.2f}x {side}" for side, ratio in case["ratios"].items()
            )
            lines.append(f"{name} {case['program']} batch {case['batch']}: {net:.3f} ms, {ratios}")
            lines += [f"  warning: {warning}" for warning in case["warnings"]]
            absent |= {f"no {side}: {reason}": None for side, reason in case["absent"].items()}
    lines += absent
    if any(_busy(result) for result in results.values()):
        lines.append(_BUSY.strip("*"))
    for target, ratio, verdict in verdicts(results):
        if ratio is not None:
            lines.append(
                f"{verdict.strip('*')}: {_title(target)}, {ratio['median']:.2f} of {target.least}"
            )
    return "\n".join(lines)


def reproduced(results: Results, earlier: Results) -> Iterator[str]:
    """Yields a line for each case of both: its ratio to stock, and if the earlier range has it."""
    for name, result in results.items():
        for case in result["cases"]:
            target = Target(name, case["program"], case["batch"], "stock", least=0.0)
            if before := find_case(earlier, target):
                now, range_ = case["ratios"]["stock"], before["ratios"]["stock"]
                within = range_["low"] <= now["median"] <= range_["high"]
                yield (
                    f"{name} {case['program']} batch {case['batch']}: {_spread(now)}, "
                    f"{'within' if within else 'outside of'} the {_spread(range_)} of the README's "
                    f"{earlier[name]['processes']} processes ({earlier[name]['date']})"
                )


def _title(target: Target) -> str:
    return f"{target.workload} {target.program}, batch {target.batch}, over {target.baseline}"


def render(results: Results, plots: Sequence[tuple[str, str]]) -> str:
    """The report.

    Args:
        results: as `load` gives them.
        plots: file names, and what each shows.
    """
    parts = ["# Benchmarks", _environment(results), _HOW, *_targets(results)]
    if plots:
        parts.append("## Plots")
        parts += [f"![{title}]({name})\n\n{title}" for name, title in plots]
    for name, result in results.items():
        parts.append(f"## {name}\n\n{result['about']}")
        kind = next((key for key in _KINDS if key in result), "cases")
        parts.extend(_KINDS[kind](result))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _environment(results: Results) -> str:
    lines = []
    for name, result in results.items():
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        notes = [f"{result['date']}, {result['processes']} processes, {machine}"]
        notes += [_BUSY] if _busy(result) else []
        notes += ["**a quick run on small tables**"] if result["quick"] else []
        notes += [f"rows times {result['scale']}"] if result["scale"] != 1.0 else []
        lines.append((name, "; ".join(notes)))
    shared: dict[str, list[str]] = {}
    for name, note in lines:
        shared.setdefault(note, []).append(name)
    return "\n".join(f"- {', '.join(names)}: {note}" for note, names in shared.items())


def _busy(result: Mapping[str, Any]) -> bool:
    return "busy_elsewhere" in result and result["busy_elsewhere"]["high"] > _MOST_BUSY


def _targets(results: Results) -> list[str]:
    rows = [
        [
            f"{one.workload} {one.program}",
            str(one.batch),
            one.baseline,
            f"{one.least}" + (f" (goal {one.goal})" if one.goal else ""),
            "" if ratio is None else _spread(ratio),
            verdict,
        ]
        for one, ratio, verdict in verdicts(results)
    ]
    met = sum(row[-1] == "met" for row in rows)
    missed = sum(row[-1] == "**missed**" for row in rows)
    head = f"## Targets\n\n{met} met, {missed} missed, {len(rows) - met - missed} not measured."
    names = ["workload", "batch", "baseline", "at least", "measured", ""]
    return [head, table(names, rows)]


def _cases(result: Mapping[str, Any]) -> Iterator[str]:
    memory = {name: rate["median"] for name, rate in result["memory"].items()}
    yield (
        f"Memory, read in a row: {memory['one_thread']:.1f} GB/s on one thread, "
        f"{memory['all_threads']:.1f} on all, {memory['caches']:.0f} from the caches. "
        + " ".join(
            f"{inputs[0].upper()}{inputs[1:]} ({', '.join(names)})."
            for inputs, names in _inputs(result["cases"]).items()
        )
    )
    sides = [side for side in _SIDES if any(side in case["sides"] for case in result["cases"])]
    yield "Milliseconds in the graph, net of the inputs; the ratios to fusion are below."
    yield table(
        ["case", "ids", *sides, "limit", "GB/s"],
        [_times(case, sides) for case in result["cases"]],
    )
    others = [side for side in sides if side != "fusion"]
    yield table(
        ["fusion over", *others, "headroom", "end to end", "nodes", "notes"],
        [_ratios(case, others) for case in result["cases"]],
    )


def _inputs(cases: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for case in cases:
        programs = found.setdefault(case["inputs"], [])
        if case["program"] not in programs:
            programs.append(case["program"])
    return found


def _case(case: Mapping[str, Any]) -> str:
    variant = "" if case["variant"] == "base" else f", {case['variant']}"
    return f"{case['program']}, batch {case['batch']}{variant}"


def _times(case: Mapping[str, Any], sides: Sequence[str]) -> list[str]:
    times = [
        f"{case['sides'][side]['net_ms']['median']:.3f}" if side in case["sides"] else "-"
        for side in sides
    ]
    return [
        _case(case),
        f"{case['ids']:,}",
        *times,
        f"{case['limit_ms']:.3f}",
        f"{case['gb_per_s']:.1f}",
    ]


def _ratios(case: Mapping[str, Any], sides: Sequence[str]) -> list[str]:
    ratios = [_spread(case["ratios"][side]) if side in case["ratios"] else "-" for side in sides]
    absent = [f"no {side}: {reason}" for side, reason in case["absent"].items()]
    fusion, stock = case["sides"]["fusion"], case["sides"]["stock"]
    end_to_end = case["end_to_end_ratio"]
    return [
        _case(case),
        *ratios,
        f"{case['headroom']:.1f}",
        "-" if end_to_end is None else _spread(end_to_end),
        f"{stock['nodes']} to {fusion['nodes']}",
        "; ".join([*(f"**{warning}**" for warning in case["warnings"]), *absent]),
    ]


def _costs(result: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for cost in result["costs"]:
        value, most, least = cost["value"]["median"], cost["most"], cost["least"]
        bound = f"at most {most:g}" if most is not None else ""
        bound = f"at least {least:g}" if least is not None else bound
        missed = (most is not None and value > most) or (least is not None and value < least)
        verdict = "" if not bound else "**missed**" if missed else "met"
        rows.append([cost["name"], _spread(cost["value"]), cost["unit"], bound, verdict])
    yield table(["", "measured", "unit", "bound", ""], rows)


def latency(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields, for each number of clients, a table of all seconds and a line about both sides."""
    for case in result["latency"]:
        clients, sides = case["clients"], case["sides"]
        rate = f"{result['rate']:g} calls per second" if clients == 1 else "as fast as they can"
        yield f"{clients} client{'s' * (clients > 1)}, {rate}:"
        names = [f"{side} {name}" for side in sides for name in ("calls", "p50 ms", "p99 ms")]
        rows = []
        for same in zip(*sides.values(), strict=True):
            cells = [one[key] for one in same for key in ("calls", "p50_ms", "p99_ms")]
            rows.append(
                [
                    str(same[0]["version"] + 1),
                    str(same[0]["second"]),
                    *("-" if cell is None else _spread(cell) for cell in cells),
                ]
            )
        yield table(["version", "second", *names], rows)
        slower = {key: _slower_seconds(sides, key) for key in ("p50_ms", "p99_ms")}
        yield (
            f"Of {len(rows)} seconds, fusion's p50 is above stock's in {slower['p50_ms']}, "
            f"p99 in {slower['p99_ms']}."
        )


def _slower_seconds(sides: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> int:
    """In how many seconds the fused side is slower; one without a call is, if stock had one."""
    count = 0
    for stock, fused in zip(sides["stock"], sides["fusion"], strict=True):
        if stock[key] is not None:
            count += fused[key] is None or fused[key]["median"] > stock[key]["median"]
    return count


def _spread(value: Mapping[str, float]) -> str:
    """The median, and the range if there is one, with three digits that count."""
    middle = _number(value["median"])
    if value["low"] == value["high"]:
        return middle
    return f"{middle} ({_number(value['low'])} to {_number(value['high'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_KINDS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "costs": _costs,
    "latency": latency,
    "training": training,
    "cases": _cases,
}
"""By what a result holds, what yields its tables."""
