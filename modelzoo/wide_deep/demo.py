"""The whole story on one model: train, export, rewrite, compare, measure.

Usage: `python -m modelzoo.wide_deep.demo`.

Stock columns of a wide-and-deep model are trained and exported by the model's own command,
`fusion rewrite` turns the export into a fused one, and two fresh processes load one model each.
Their outputs must agree bit for bit before anything is timed. The exit status is 0 only if they do,
if every column was fused and if the fused ops really ran. Everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.markup
import rich.table

from modelzoo import criteo
from modelzoo.signatures import EMBEDDINGS, SERVING
from modelzoo.wide_deep import measure
from modelzoo.wide_deep.worker import ModelProcess, Request, WorkerError, model_process

BATCH_SIZES = (1, 64, 512, 4096)
LOG = "log.txt"
MIN_NODE_RATIO = 4
"""The embedding part executes at least so many times fewer nodes after the rewrite."""
FUSED = ("FusedEmbedding", "GroupedEmbedding")
"""What the names of the ops that combine rows begin with."""

console = rich.console.Console(highlight=False)


class DemoError(Exception):
    """Something the demo promises does not hold."""


def main() -> int:
    """Runs the command line above and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.wide_deep.demo")
    parser.add_argument("--directory", default=".demo", help="where the models go; %(default)s")
    parser.add_argument("--cap", type=int, default=200_000, help="largest table; %(default)s rows")
    parser.add_argument("--steps", type=int, default=30, help="of training; %(default)s")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    directory = pathlib.Path(options.directory)
    if directory.is_dir() and any(directory.iterdir()) and not (directory / LOG).is_file():
        console.print(f"{directory}: is not empty and holds no demo; name another --directory")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / LOG).touch()
    try:
        run(directory, options.cap, options.steps)
    except (DemoError, WorkerError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {rich.markup.escape(str(error))}")
        console.print(f"What TensorFlow logged is in {directory / LOG}.")
        return 1
    return 0


def run(directory: pathlib.Path, cap: int, steps: int) -> None:
    """Does what the module promises, in `directory`, with tables of at most `cap` rows.

    Raises:
        DemoError: some step failed, or a promise does not hold.
        WorkerError: a model could not be loaded or run.
    """
    stock, fused, log = (str(directory / name) for name in ("stock", "fused", LOG))
    _heading("Train and export with stock columns")
    train(str(directory / "run"), stock, cap, steps, log)
    _heading("Rewrite")
    rewrite(stock, fused, directory / "report.json", log)
    with (
        model_process(stock, with_fusion=False, log=log) as before,
        model_process(fused, with_fusion=True, log=log) as after,
    ):
        compare(before, after, criteo.CriteoData(cap=cap, missing=0.02, seed=1))


def train(folder: str, exported: str, cap: int, steps: int, log: str) -> None:
    """Trains a compat.v1 model of stock columns and exports it.

    Raises:
        DemoError: it failed.
    """
    command = [sys.executable, "-m", "modelzoo.wide_deep"]
    options = {"style": "graph", "cap": cap, "steps": steps, "eval-samples": 5000}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    _run([*command, "train", "--run", folder, *words], log)
    _run([*command, "export", exported, "--run", folder], log)


def rewrite(source: str, destination: str, report_path: pathlib.Path, log: str) -> None:
    """Runs `fusion rewrite` and checks that it fused every column.

    Raises:
        DemoError: it failed, or left a column as it was.
    """
    command = str(pathlib.Path(sys.executable).with_name("fusion"))
    _run([command, "rewrite", source, destination, "--report", str(report_path)], log)
    check_report(json.loads(report_path.read_text()), len(criteo.CATEGORICAL))


def check_report(report: dict[str, Any], columns: int) -> None:
    """Raises DemoError unless the rewriter saw `columns` columns or more and fused all of them."""
    fused, total = report["fused"], report["total"]
    if fused != total or total < columns:
        raise DemoError(f"{fused} of {total} columns were fused, expected {columns} or more, all")


def compare(before: ModelProcess, after: ModelProcess, data: criteo.CriteoData) -> None:
    """Checks that two models agree and how they ran, measures both, and prints the tables.

    Raises:
        DemoError: an output differs, or stock lookups ran where fused ones should have.
    """
    _heading("Compare the outputs of both models, each in a fresh process")
    console.print(f"{check_equal(before, after, data)} output values, bit for bit the same")
    _heading("Nodes")
    console.print(node_table(before, after, data))
    _heading("Latency")
    console.print(latency_table(before, after, data))


def check_equal(before: ModelProcess, after: ModelProcess, data: criteo.CriteoData) -> int:
    """Compares both signatures' outputs on many batches and returns how many values agreed.

    The batches are those timed later, and per size one with uniform ids, one with half of the
    entries missing and one with all of them missing.

    Raises:
        DemoError: an output differs in a single bit.
    """
    variants = (
        data,
        dataclasses.replace(data, alpha=None, missing=0.0),
        dataclasses.replace(data, missing=0.5),
        dataclasses.replace(data, missing=1.0),
    )
    compared = 0
    for signature in (SERVING, EMBEDDINGS):
        for size in BATCH_SIZES:
            requests = [Request(signature, variant, size) for variant in variants]
            requests += [Request(signature, data, size, index) for index in (1, 2, 3)]
            for request in requests:
                expected = before.ask("outputs", request)
                actual = after.ask("outputs", request)
                if difference := measure.difference(expected, actual):
                    raise DemoError(f"{difference} ({request})")
                compared += sum(array.size for array in expected.values())
    return compared


def node_table(
    before: ModelProcess, after: ModelProcess, data: criteo.CriteoData
) -> rich.table.Table:
    """Returns a table of node counts.

    The embedding part is what one call of the signature `embeddings` executes: everything from
    the 26 id tensors to the embeddings that are then joined.

    Raises:
        DemoError: the rewritten model ran a stock lookup, or no fused op, or too many nodes.
    """
    table = _table("", "stock", "fused", "fewer")

    def add(what: str, stock: int, fused: int) -> None:
        table.add_row(what, str(stock), str(fused), f"{stock / fused:.2f}x")

    add("in the SavedModel", before.ask("saved_nodes"), after.ask("saved_nodes"))
    for what, signature in (("whole model", SERVING), ("embedding part", EMBEDDINGS)):
        request = Request(signature, data, 64)
        stock, fused = before.ask("executed_ops", request), after.ask("executed_ops", request)
        check_fused_ops_ran(fused)
        add(f"executed, {what}", sum(stock.values()), sum(fused.values()))
    check_fewer(sum(stock.values()), sum(fused.values()))
    return table


def check_fewer(stock: int, fused: int) -> None:
    """Raises DemoError unless `fused` nodes are fewer than `stock` nodes by the factor promised."""
    if fused * MIN_NODE_RATIO > stock:
        raise DemoError(
            f"the rewritten embedding part executes {fused} nodes where stock executes {stock}: "
            f"that is not {MIN_NODE_RATIO} times fewer"
        )


def check_fused_ops_ran(executed: dict[str, int]) -> None:
    """Raises DemoError unless fused lookups, and no stock ones, are among the executed ops."""
    stock = sorted(op for op in executed if "Segment" in op or op == "SparseFillEmptyRows")
    fused = sum(count for op, count in executed.items() if op.startswith(FUSED))
    if stock or not fused:
        raise DemoError(f"the rewritten model ran {fused} fused lookups, and stock ops {stock}")


def latency_table(
    before: ModelProcess, after: ModelProcess, data: criteo.CriteoData
) -> rich.table.Table:
    """Returns a table of the milliseconds per call of both models, by batch size."""
    table = _table("batch", "", "stock ms", "fused ms", "speedup")
    for size in BATCH_SIZES:
        for what, signature in (("all", SERVING), ("embed", EMBEDDINGS)):
            request = Request(signature, data, size)
            pair = measure.interleaved(before, after, request)
            table.add_row(
                str(size) if signature == SERVING else "",
                what,
                _milliseconds(pair.before),
                _milliseconds(pair.after),
                f"{pair.speedup:.2f}x ({min(pair.ratios):.2f}-{max(pair.ratios):.2f})",
            )
    table.caption = measure.CAPTION
    return table


def _milliseconds(seconds: list[float]) -> str:
    low, middle, high = 1000 * np.percentile(seconds, [25, 50, 75])
    return f"{middle:.2f} ± {(high - low) / 2:.2f}"


def _table(*headers: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for position, header in enumerate(headers):
        table.add_column(header, justify="left" if position == 0 else "right", no_wrap=True)
    return table


def _heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/]")


def _run(command: list[str], log: str) -> None:
    """Runs a command whose standard error goes to the end of `log`."""
    console.print(f"[dim]$ {' '.join(command)}[/]", soft_wrap=True)
    try:
        with open(log, "ab") as file:
            status = subprocess.run(command, stderr=file, check=False).returncode
    except FileNotFoundError as error:
        raise DemoError(f"{command[0]} is missing; install the package first") from error
    if status != 0:
        logged = pathlib.Path(log).read_text(errors="replace").strip().splitlines()[-1:]
        raise DemoError("\n".join([f"`{' '.join(command)}` exited with status {status}", *logged]))


if __name__ == "__main__":
    sys.exit(main())
