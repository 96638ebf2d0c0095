"""Measurements of fusion against stock TensorFlow, torch and FBGEMM, printed and kept as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.training import command as training

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

#: What the README shows.
_HEADLINES = Path(__file__).resolve().parent / "results" / "headlines"


def main() -> int:
    """The command line; the result is the exit code, 1 when a limit is exceeded or a run fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_lookups(commands)
    _add_training(commands)
    worker = commands.add_parser("worker")
    worker.add_argument("name")
    worker.add_argument("options", type=json.loads)
    worker.add_argument("path", type=Path)
    options = parser.parse_args()
    return _COMMANDS[options.command](options)


def _add_lookups(commands: Any) -> None:
    passes = commands.add_parser("pass", help="what fusing costs while graphs are optimized")
    passes.add_argument("--repeats", type=int, default=7)
    passes.add_argument("--out", type=Path, help="a folder for the numbers, pass.json")
    run = commands.add_parser("run", help="measure workloads")
    run.add_argument("--workload", nargs="+", metavar="NAME", help="some of them instead of all")
    run.add_argument("--quick", action="store_true", help="small and short, to try it out")
    run.add_argument("--headlines", action="store_true", help="what the README shows alone")
    run.add_argument("--processes", type=int, default=3, help="measurements of each, default 3")
    run.add_argument("--scale", type=float, default=1.0, help="times the rows of every table")
    run.add_argument("--out", type=Path, required=True, help="a folder for <workload>.json")
    latency = commands.add_parser(
        "latency", help="p50 and p99 of each second since a model's first answer"
    )
    latency.add_argument(
        "--clients", type=int, nargs="+", default=[1, 8], metavar="N", help="default 1 8"
    )
    latency.add_argument(
        "--seconds", type=int, default=12, help="for each of two versions of the model, default 12"
    )
    latency.add_argument(
        "--rate", type=float, default=200.0, help="calls per second of a single client, default 200"
    )
    latency.add_argument("--scale", type=float, default=1.0, help="times the rows of every table")
    latency.add_argument("--processes", type=int, default=1, help="of each side, default 1")
    latency.add_argument("--out", type=Path, help="a folder for the numbers, latency.json")
    report = commands.add_parser("report", help="write report.md and plots")
    report.add_argument("folder", type=Path, help="what `run` wrote, and where the report goes")
    gpu = commands.add_parser("gpu", help="check and measure the GPU kernels, without TensorFlow")
    gpu.add_argument(
        "--step", nargs="*", metavar="NAME", help="beginnings of names; all by default, or none"
    )
    gpu.add_argument(
        "--workload", nargs="*", metavar="NAME", help="beginnings of names; all by default, or none"
    )
    gpu.add_argument(
        "--elements", type=int, default=0, help="of a step; a million times the scale by default"
    )
    gpu.add_argument(
        "--scale", type=float, default=1.0, help="times the rows of tables and batches"
    )
    gpu.add_argument("--repeats", type=int, default=20)
    gpu.add_argument("--seed", type=int, help="of tables and ids; others each time by default")
    gpu.add_argument("--out", type=Path, help="a folder for gpu.json and gpu.md")
    layers = commands.add_parser("layers", help="lookups of Keras layers and ragged ones")
    layers.add_argument("--out", type=Path, required=True, help="a folder for layers.json")


def _add_training(commands: Any) -> None:
    keras = commands.add_parser("keras", help="steps of training of Keras models")
    training.add_options(keras)
    keras.add_argument("--out", type=Path, help="a folder for the numbers, keras.json")
    tables = commands.add_parser("tables", help="embedding variables against stock's hash tables")
    tables.add_argument("--keys", type=int, default=10_000_000, help="default 10 million")
    tables.add_argument("--batch", type=int, default=4096, help="of 26 keys each, default 4096")
    tables.add_argument("--seconds", type=float, default=20.0, help="a comparison, default 20")
    tables.add_argument("--out", type=Path, help="a folder for the numbers, tables.json")
    scale = commands.add_parser(
        "scale", help="what tables split by rows send over many replicas, by a model"
    )
    scale.add_argument(
        "--replicas", type=int, nargs="+", default=[16, 64, 256, 1024, 4096], metavar="N"
    )
    scale.add_argument("--batch", type=int, default=65_536, help="of all replicas, default 65,536")
    scale.add_argument("--dimension", type=int, default=128, help="of each table, default 128")
    scale.add_argument(
        "--alpha", type=float, default=1.05, help="exponent of Zipf's law, default 1.05"
    )
    commands.add_parser("smoke", help="some headlines beside those of the README, in three minutes")


def _pass(options: argparse.Namespace) -> int:
    import fusion
    from benchmarks.passes import measure
    from fusion.runtime.machine import machine

    with fusion.fused():
        numbers = {"machine": machine(), **measure(options.repeats)}
    _write(numbers, options.out, "pass.json")
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


def _layers(options: argparse.Namespace) -> int:
    from benchmarks.layers import write

    return 0 if write(options.out, lambda line: print(line, flush=True)) else 1


def _tables(options: argparse.Namespace) -> int:
    from benchmarks.keyed_tables import measure, report

    numbers = measure(
        options.keys, options.batch, options.seconds, lambda line: print(line, flush=True)
    )
    _write(numbers, options.out, "tables.json")
    print(report(numbers))
    return 0


def _scale(options: argparse.Namespace) -> int:
    from benchmarks.scale import report

    print(report(options.replicas, options.batch, options.dimension, options.alpha))
    return 0


def _gpu(options: argparse.Namespace) -> int:
    from benchmarks.gpu import prepare_package

    prepare_package()
    from benchmarks.gpu import measure as gpu

    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    try:
        numbers = gpu.measure(
            options.scale,
            options.repeats,
            seed,
            gpu.Choice(options.step, options.workload, options.elements),
            lambda so_far: _write(so_far, options.out, "gpu.json"),
        )
    except ImportError as error:
        print(f"python -m benchmarks gpu: {error}; it needs numba-cuda, and torch or cupy")
        return 1
    except RuntimeError as error:
        print(f"python -m benchmarks gpu: {error} (--seed {seed})")
        return 1
    _write(numbers, options.out, "gpu.json")
    table = gpu.table(numbers)
    if options.out is not None:
        (options.out / "gpu.md").write_text(table)
    print(table, end="")
    for failure in numbers["failures"]:
        print(f"python -m benchmarks gpu: {failure} (--seed {seed})")
    return 1 if numbers["failures"] else 0


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from benchmarks.catalog import HEADLINES, WORKLOADS
    from benchmarks.costs import COSTS
    from benchmarks.runner import Options, run

    every = [*HEADLINES] if options.headlines else [*WORKLOADS, *COSTS]
    names = options.workload or every
    if unknown := sorted(set(names) - set(every)):
        print(f"no workload {', '.join(unknown)}; there are {', '.join(every)}", file=sys.stderr)
        return 2
    how = Options(options.processes, options.quick, options.scale, headlines=options.headlines)
    failures = run(names, how, options.out, Console(stderr=True))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def _smoke(options: argparse.Namespace) -> int:
    from rich.console import Console

    from benchmarks.catalog import SMOKE
    from benchmarks.report import headlines, load, reproduced
    from benchmarks.runner import Options, run

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        failures = run(SMOKE, Options(headlines=True), out, Console(stderr=True))
        found = load(out)
    print(headlines(found))
    print("\n".join(reproduced(found, load(_HEADLINES))))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def _latency(options: argparse.Namespace) -> int:
    from rich.console import Console

    from benchmarks import latency
    from benchmarks.report import latency as tables
    from benchmarks.runner import WorkerFailed, run_worker, write_result

    how = latency.Options(
        tuple(options.clients), options.processes, options.seconds, options.rate, options.scale
    )
    with Console(stderr=True).status("") as status:

        def serve(load: latency.Load) -> dict[str, Any]:
            label = f"{load.side}, clients {load.clients}"
            status.update(label)
            asked = dataclasses.asdict(load)
            return run_worker("latency", asked, lambda line: status.update(f"{label}: {line}"))

        try:
            facts = latency.run(how, serve)
        except (RuntimeError, ValueError, WorkerFailed) as failure:
            print(f"latency: {failure}", file=sys.stderr)
            return 1
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_result(options.out, "latency", latency.ABOUT, how.processes, facts)
    print("\n\n".join([latency.ABOUT, *tables(facts)]))
    return 0


def _report(options: argparse.Namespace) -> int:
    from benchmarks.plots import plot
    from benchmarks.report import load, render

    results = load(options.folder)
    if not results:
        print(f"there are no results in {options.folder}", file=sys.stderr)
        return 2
    plots = plot(results, options.folder)
    path = options.folder / "report.md"
    path.write_text(render(results, plots))
    print(path)
    return 0


def _worker(options: argparse.Namespace) -> int:
    from benchmarks.catalog import HEADLINES, WORKLOADS
    from benchmarks.costs import COSTS, measure
    from benchmarks.runner import Options

    def progress(line: str) -> None:
        print(line, flush=True)

    if options.name in ("latency", training.NAME):
        if options.name == training.NAME:
            found = training.work(options.options, progress)
        else:
            from benchmarks import latency

            found = latency.measure(latency.Load(**options.options), progress)
        options.path.write_text(json.dumps(found))
        return 0
    end_to_end = options.options.pop("end_to_end")
    how = Options(**options.options)
    if options.name in COSTS:
        found = measure(options.name, how.quick, progress)
    else:
        catalog = HEADLINES if how.headlines else WORKLOADS
        workload = catalog[options.name].scaled(how.scale)
        from benchmarks import worker

        effort = worker.Effort(end_to_end=end_to_end)
        if how.quick:
            workload = workload.scaled(0.1).quick()
            effort = worker.Effort(5, 1.0, end_to_end, stream_megabytes=256)
        found = worker.measure(workload, effort, progress)
    options.path.write_text(json.dumps(found))
    return 0


_COMMANDS = {
    "gpu": _gpu,
    "keras": training.run,
    "latency": _latency,
    "layers": _layers,
    "pass": _pass,
    "run": _run,
    "report": _report,
    "scale": _scale,
    "smoke": _smoke,
    "tables": _tables,
    "worker": _worker,
}

if __name__ == "__main__":
    sys.exit(main())
