"""One result out of what several processes measured: medians, spreads, ratios and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fusion.saved_model.bench.timing import spread

#: A time and the side it is of, in a result of one process.
_TIMES = ("graph_ms", "inputs_ms", "end_to_end_ms")


def combine(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result out of those of several processes.

    A time is {"median", "low", "high"} in milliseconds over the processes' medians; so is a ratio.

    Args:
        processes: what `worker.measure` or `costs.measure` gave in each of them; at least one.
    """
    if "costs" in processes[0]:
        return {"costs": [_combine_cost(costs) for costs in _aligned(processes, "costs")]}
    memory = {
        name: spread([one["memory"][name] for one in processes]) for name in processes[0]["memory"]
    }
    cases = [_combine_case(found, memory) for found in _aligned(processes, "cases")]
    busy = spread([one["busy_elsewhere"] for one in processes])
    return {"memory": memory, "busy_elsewhere": busy, "cases": cases}


def _aligned(processes: Sequence[dict[str, Any]], key: str) -> Iterator[tuple[Any, ...]]:
    """The same entry of each process, entry by entry."""
    return zip(*(one[key] for one in processes), strict=True)


def _combine_cost(costs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**costs[0], "value": spread([cost["value"] for cost in costs])}


def _combine_case(cases: Sequence[dict[str, Any]], memory: dict[str, Any]) -> dict[str, Any]:
    first = cases[0]
    sides = {
        name: _combine_side([case["sides"][name] for case in cases]) for name in first["sides"]
    }
    ratios = {
        name: spread(
            [case["sides"][name]["net_ms"] / case["sides"]["fusion"]["net_ms"] for case in cases]
        )
        for name in sides
        if name != "fusion"
    }
    limit = first["traffic"] / memory["all_threads"]["median"] / 1e6
    from_caches = first["traffic"] / memory["caches"]["median"] / 1e6
    found = {
        **{key: value for key, value in first.items() if key != "sides"},
        "sides": sides,
        "ratios": ratios,
        "end_to_end_ratio": _end_to_end(cases),
        "limit_ms": limit,
        "headroom": sides["stock"]["net_ms"]["median"] / limit,
        "gb_per_s": first["traffic"] / sides["fusion"]["net_ms"]["median"] / 1e6,
    }
    found["warnings"] = list(_warnings(found, from_caches))
    return found


def _combine_side(sides: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = sides[0]
    found = {key: value for key, value in first.items() if key not in (*_TIMES, "net_ms")}
    found["net_ms"] = spread([one["net_ms"] for one in sides])
    for name in _TIMES:
        if times := [one[name] for one in sides if name in one]:
            found[name] = spread([time["median"] for time in times])
            found[name]["runs"] = sum(time["runs"] for time in times)
    if "largest_difference" in first:
        found["largest_difference"] = max(one["largest_difference"] for one in sides)
        found["same_bits"] = all(one["same_bits"] for one in sides)
    return found


def _end_to_end(cases: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """How many times faster a call with fed tensors is than stock's, where that was measured."""
    ratios = [
        case["sides"]["stock"]["end_to_end_ms"]["median"]
        / case["sides"]["fusion"]["end_to_end_ms"]["median"]
        for case in cases
        if "end_to_end_ms" in case["sides"]["fusion"]
    ]
    return spread(ratios) if ratios else None


def _warnings(case: dict[str, Any], from_caches: float) -> Iterator[str]:
    """Yields what makes a case's numbers doubtful."""
    fusion = case["sides"]["fusion"]
    if fusion["columns_fused"] != case["columns"]:
        yield f"{fusion['columns_fused']} of {case['columns']} columns are fused"
    if fusion["net_ms"]["median"] < from_caches:
        yield (
            "faster than the caches: the ratio is above the headroom, which is a bug in the "
            "benchmark"
        )
    inputs = fusion["inputs_ms"]["median"]
    if fusion["net_ms"]["median"] < 0.1 * inputs:
        yield "the lookups take less than a tenth of what making the inputs takes"
