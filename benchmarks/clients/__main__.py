"""Runs all models, each in a process of its own, and writes a table of them.

python -m benchmarks.clients [--out benchmarks/results/clients] [MODEL ...]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.clients.models import CLIENTS
from benchmarks.clients.trainings import TRAININGS
from benchmarks.markdown import table as markdown
from benchmarks.training.tables import equal, spread
from fusion import build_ops

_HEAD = (
    *("model", "library", "lookups fused", "equal", "stock ms", "fused ms", "ratio"),
    *("in the graph", "embeddings in the graph"),
    *("SavedModel: fused", "ratio", "equal by a library of ops", "split: cuts"),
    "embeddings alone",
)
_TRAINING_HEAD = (
    *("model", "library", "optimizer", "lookups fused", "updates fused", "equal"),
    *("stock ms", "fused ms", "ratio", "at least"),
)
_PROCESSES = 3
_LIBRARIES = ("tensorflow", "tf_keras", "deepctr", "tensorflow-recommenders", "keras-rs", "keras")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [*CLIENTS, *TRAININGS]
    parser.add_argument("models", nargs="*", default=every, metavar="MODEL", help=", ".join(every))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/clients"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        library = Path(folder) / "libfusion_ops.so"
        if not CLIENTS.keys().isdisjoint(given.models):
            build_ops(library, cpus=["native"])
        failed = [
            name
            for name in given.models
            if not (_run(name, given.out, library) if name in CLIENTS else _train(name, given.out))
        ]
    (given.out / "report.md").write_text(table(given.out))
    return 1 if failed else 0


def _run(name: str, out: Path, library: Path) -> bool:
    print(name, flush=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if CLIENTS[name].is_legacy:
        environment["TF_USE_LEGACY_KERAS"] = "1"
    file = out / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.clients.run", name, str(file), str(library)]
    if subprocess.run(command, env=environment, check=False).returncode:
        return False
    found = json.loads(file.read_text())
    parts = ["whole", *(["embeddings"] if "embeddings" in found else [])]
    found["net"] = {part: _net(name, part, environment) for part in parts}
    file.write_text(json.dumps(found, indent=1) + "\n")
    return True


def _train(name: str, out: Path) -> bool:
    print(name, flush=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    command = [sys.executable, "-m", "benchmarks.clients.train", name, str(out / f"{name}.json")]
    return not subprocess.run(command, env=environment, check=False).returncode


def _net(name: str, part: str, environment: dict[str, str]) -> dict[str, Any]:
    """Measures a model, or its embeddings, net of the inputs: medians of processes."""
    command = [sys.executable, "-m", "benchmarks.clients.net", name, part]
    runs = []
    for _ in range(_PROCESSES):
        done = subprocess.run(command, env=environment, check=True, capture_output=True)
        # DeepCTR says something first.
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    ratios = [run["ratio"] for run in runs]
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return {**medians, "range": [min(ratios), max(ratios)]}


def table(out: Path) -> str:
    """The table of what lies in a folder of results."""
    found, trained = _kept(CLIENTS, out), _kept(TRAININGS, out)
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    date = datetime.date.today().isoformat()
    batch = next((one["batch"] for one in (*found, *trained)), 0)
    lines = [
        "# Models of DeepCTR, TFRS and keras-rs",
        "",
        f"{date}, {os.cpu_count()} processors, batch {batch}; {libraries}.",
        "`make clients` writes this file. Milliseconds are medians of calls from Python; ratios",
        "are stock's over fused, in turn in one process, with the 10th and 90th percentile.",
        "In the graph: net of the inputs, which variables hold; medians of three processes, the",
        "least and the most. The last five columns are of exported SavedModels, verified, also by",
        "a library of `fusion build-ops` that no kernel was added to for them, and measured in",
        "their graphs, inputs too. Embeddings are what the first dense layers read.",
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|{'---|' * len(_HEAD)}",
        *map(_row, found),
    ]
    if trained:
        lines += [
            "",
            "## Steps of training",
            "",
            "As `fit` takes them. Ratios have the 10th and 90th percentile of rounds; losses and",
            "all variables, slots included, were compared first.",
            "",
            markdown(_TRAINING_HEAD, [_training_row(one) for one in trained]),
        ]
        lines += [
            f"\n{one['model']}: two stock models are equal to each other: {equal(one['control'])}"
            for one in trained
            if "control" in one
        ]
    reasons = [
        f"- {one['model']}: {reason}"
        for one in found
        for reason in sorted({*one["enable"]["reasons"], *one["saved_model"]["reasons"]})
    ]
    reasons += [f"- {one['model']}: {reason}" for one in trained for reason in one["reasons"]]
    return "\n".join([*lines, *(["", "Why the rest stays:", "", *reasons] if reasons else []), ""])


def _kept(names: Iterable[str], out: Path) -> list[dict[str, Any]]:
    files = [out / f"{name}.json" for name in names]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def _training_row(one: dict[str, Any]) -> list[str]:
    return [
        one["model"],
        one["library"],
        one["optimizer"],
        f"{one['fused_columns']} of {one['found_columns']}",
        f"{one['fused_updates']} of {one['found_updates']}",
        equal(one["compared"]),
        f"{one['stock_ms']:.2f}",
        f"{one['fused_ms']:.2f}",
        spread(one["ratio"]),
        "" if one["least"] is None else f"{one['least']:g}",
    ]


def _row(one: dict[str, Any]) -> str:
    whole, saved, part = one["enable"], one["saved_model"], one.get("embeddings")
    net = one.get("net", {})
    equal = "yes" if whole["equal"] else f"to {whole['difference']:.0e}"
    cells = (
        one["model"],
        one["library"],
        f"{whole['fused']} of {whole['columns']}",
        equal,
        f"{whole['stock_ms']:.2f}",
        f"{whole['fused_ms']:.2f}",
        _ratio(whole),
        *(_ratio(net[part]) if part in net else "" for part in ("whole", "embeddings")),
        f"{saved['fused']} of {saved['columns']}",
        _ratio(saved),
        "yes" if saved["library_equal"] else "no",
        # A split whose parts give other bits is an error, and none in the table.
        str(saved.get("cuts", "")),
        "" if part is None else _ratio(part),
    )
    return f"| {' | '.join(cells)} |"


def _ratio(found: dict[str, Any]) -> str:
    low, high = found["range"]
    return f"{found['ratio']:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
