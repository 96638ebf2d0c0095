"""Measurements, printed and kept as JSON: `python -m benchmarks pass [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.machine import machine


def main() -> int:
    """The command line; the result is the exit code, 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    passes = commands.add_parser("pass", help="what fusing costs while graphs are optimized")
    passes.add_argument("--repeats", type=int, default=7)
    passes.add_argument("--out", type=Path, help="a folder for the numbers, pass.json")
    options = parser.parse_args()
    return _pass(options.repeats, options.out)


def _pass(repeats: int, out: Path | None) -> int:
    import fusion
    from benchmarks.passes import measure

    with fusion.fused():
        numbers = {"machine": machine(), **measure(repeats)}
    _write(numbers, out, "pass.json")
    others, columns, limits = (
        numbers[key] for key in ("without_embeddings", "thousand_columns", "limits")
    )
    print(", ".join(f"{key} {value}" for key, value in numbers["machine"].items()))
    print(
        f"a graph without embeddings, {others['nodes']:,} nodes, {others['megabytes']:.1f} MB: "
        f"{others['ms_per_mb']:.2f} ms per MB and call, "
        f"at most {limits['without_embeddings_ms_per_mb']}"
    )
    print(
        f"a graph of {columns['columns']:,} columns, {columns['nodes']:,} nodes: "
        f"{columns['all_s']:.2f} s, of which parsing {columns['parse_s']:.2f} s, "
        f"at most {limits['thousand_columns_s']}; {columns['nodes_after']:,} nodes are left"
    )
    within = (
        others["ms_per_mb"] <= limits["without_embeddings_ms_per_mb"]
        and columns["all_s"] <= limits["thousand_columns_s"]
    )
    return 0 if within else 1


def _write(numbers: dict[str, Any], out: Path | None, name: str) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
