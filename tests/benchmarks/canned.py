"""What processes would have measured, with times that are easy to reckon with."""

from __future__ import annotations

from typing import Any


def side(net: float, inputs: float = 1.0, **facts: Any) -> dict[str, Any]:
    whole = {"median": net + inputs, "low": net, "high": net + 2 * inputs, "runs": 20}
    return {
        "net_ms": net,
        "graph_ms": whole,
        "inputs_ms": {"median": inputs, "low": inputs, "high": inputs, "runs": 20},
        "end_to_end_ms": {**whole, "median": 2 * net},
        "same_bits": True,
        "largest_difference": 0.0,
        "nodes": 10,
        **facts,
    }


def case(fusion: float, *, stock: float = 12.0, **facts: Any) -> dict[str, Any]:
    return {
        "program": "dim16",
        "batch": 512,
        "variant": "base",
        "draw": "power law ids",
        "columns": 26,
        "width": 416,
        "tables": "variables",
        "inputs": "inputs are read",
        "ids": 1000,
        "traffic": 10_000_000,
        "sides": {
            "stock": side(stock, columns_fused=0),
            "fusion": side(fusion, columns_fused=26),
        },
        "absent": {"torch": "torch is not installed (extra bench)"},
        **facts,
    }


def process(*cases: dict[str, Any], busy: float = 0.0) -> dict[str, Any]:
    return {
        "about": "26 columns.",
        "memory": {"one_thread": 10.0, "all_threads": 20.0, "caches": 100.0},
        "busy_elsewhere": busy,
        "cases": list(cases),
    }
