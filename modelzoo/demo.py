"""The whole story on one model: train, export, rewrite, compare, measure.

Stock columns of a wide-and-deep model are trained in a compat.v1 Session and exported; `fusion
rewrite` turns the export into a fused one. Both models, each in a process of its own, must agree
bit for bit before anything is timed. The exit status is 0 only if they do, if every column was
fused and if the fused ops really ran. Everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rich.box
import rich.console
import rich.markup
import rich.table

from modelzoo import criteo

if TYPE_CHECKING:
    from fusion.saved_model import BenchReport

LOG = "log.txt"
MIN_NODE_RATIO = 4
"""The embedding part executes at least so many times fewer nodes after the rewrite."""
FUSED = ("FusedEmbedding", "GroupedEmbedding")
"""What the names of the ops that combine rows begin with."""
SIGNATURES = {"all": "serving_default", "embed": "embeddings"}
"""The whole model's, and that of its embedding part."""

#: Nodes that compute nothing: they carry arguments and results, or hand out a stored tensor.
_IDLE = {"_Arg", "_Retval", "_Recv", "_Send", "Const", "Identity", "IdentityN", "NoOp"}

console = rich.console.Console(highlight=False)


class DemoError(Exception):
    """Something the demo promises does not hold."""


def train(folder: str, exported: str, cap: int, steps: int, log: str) -> None:
    """Trains a compat.v1 model of stock columns and exports it.

    Raises:
        DemoError: it failed.
    """
    flags = {"style": "graph", "cap": cap, "samples": 512 * steps, "eval-samples": 5000}
    flags |= {"run": folder, "export": exported}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    _run([sys.executable, "-m", "modelzoo.train", "wide_deep", *words], log)


def rewrite(source: str, destination: str, report: Path, log: str) -> None:
    """Runs `fusion rewrite` and checks that it fused every column.

    Raises:
        DemoError: it failed, or left a column as it was.
    """
    command = str(Path(sys.executable).with_name("fusion"))
    _run([command, "rewrite", source, destination, "--report", str(report)], log)
    check_report(json.loads(report.read_text()), len(criteo.CATEGORICAL))


def check_report(report: dict[str, Any], columns: int) -> None:
    """Raises DemoError unless the rewriter saw `columns` columns or more and fused all of them."""
    fused, total = report["fused"], report["total"]
    if fused != total or total < columns:
        raise DemoError(f"{fused} of {total} columns were fused, expected {columns} or more, all")


def compare(stock: str, fused: str, features: Mapping[str, Any], inputs: Path) -> str:
    """Compares both models on samples, which a file is made of; says what agreed.

    Raises:
        DemoError: an output differs in a single bit.
        ModelError: a model cannot be loaded or run.
    """
    from fusion.saved_model import compare_models

    np.savez(inputs, **features)
    result = compare_models(stock, fused, inputs=inputs)
    if not result.same:
        raise DemoError(result.summary())
    return result.summary()


def samples(cap: int) -> dict[str, Any]:
    """4,096 samples: of a power law, uniform, with half of the ids missing, and with all."""
    kinds: list[dict[str, Any]] = [{"missing": 0.02}, {"alpha": None}]
    kinds += [{"missing": 0.5}, {"missing": 1.0}]
    batches = [criteo.CriteoData(cap, **kind, seed=1).batch(1024).features for kind in kinds]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def node_table(stock: str, fused: str, features: Mapping[str, Any]) -> rich.table.Table:
    """Returns a table of node counts.

    The embedding part is what one call of the signature `embeddings` executes: everything from
    the 26 id tensors to the embeddings that are then joined.

    Raises:
        DemoError: the rewritten model ran a stock lookup, or no fused op, or too many nodes.
    """
    table = _table("", "stock", "fused", "fewer")

    def add(what: str, before: int, after: int) -> None:
        table.add_row(what, str(before), str(after), f"{before / after:.2f}x")

    add("in the SavedModel", _saved_nodes(stock), _saved_nodes(fused))
    for what, signature in zip(("whole model", "embedding part"), SIGNATURES.values(), strict=True):
        executed = executed_ops(fused, signature, features)
        check_fused_ops_ran(executed)
        before, after = executed_ops(stock, signature, features).total(), executed.total()
        add(f"executed, {what}", before, after)
    check_fewer(before, after)
    return table


def check_fewer(stock: int, fused: int) -> None:
    """Raises DemoError unless `fused` nodes are fewer than `stock` nodes by the factor promised."""
    if fused * MIN_NODE_RATIO > stock:
        raise DemoError(
            f"the rewritten embedding part executes {fused} nodes where stock executes {stock}: "
            f"that is not {MIN_NODE_RATIO} times fewer"
        )


def check_fused_ops_ran(executed: Mapping[str, int]) -> None:
    """Raises DemoError unless fused lookups, and no stock ones, are among the executed ops."""
    stock = sorted(op for op in executed if "Segment" in op or op == "SparseFillEmptyRows")
    fused = sum(count for op, count in executed.items() if op.startswith(FUSED))
    if stock or not fused:
        raise DemoError(f"the rewritten model ran {fused} fused lookups, and stock ops {stock}")


def _saved_nodes(path: str) -> int:
    """The number of nodes in saved_model.pb, library functions included."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = Path(path, "saved_model.pb").read_bytes()
    graphs = [meta.graph_def for meta in saved_model_pb2.SavedModel.FromString(content).meta_graphs]
    return sum(
        len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
        for graph in graphs
    )


def executed_ops(
    path: str, signature: str, features: Mapping[str, Any]
) -> collections.Counter[str]:
    """How often each op ran in one call, which is made in a Session, as by TensorFlow Serving.

    The executor's own step statistics say which nodes ran, and the partition graphs (what is left
    after all of TensorFlow's optimizers) which op each was. Nodes that compute nothing are not
    counted, nor is a concat that does no more than join the results into one output.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], path)
        called = meta_graph.signature_def[signature]
        feeds = {info.name: features[name] for name, info in called.inputs.items()}
        fetches = [info.name for info in called.outputs.values()]
        session.run(fetches, feeds, options=options, run_metadata=metadata)
    nodes = {node.name: node for graph in metadata.partition_graphs for node in graph.node}
    ran = {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}
    results = {_producer(nodes, node) for node in nodes.values() if node.op == "_Retval"}
    joins = {name for name in results if nodes[name].op == "ConcatV2"}
    counts = collections.Counter(nodes[name].op for name in (ran & nodes.keys()) - joins)
    return collections.Counter({op: count for op, count in counts.items() if op not in _IDLE})


def _producer(nodes: Mapping[str, Any], node: Any) -> str:
    """The node that computes the first input of `node`, identities left out."""
    while True:
        name, _, index = node.input[0].partition(":")
        node = nodes[name]
        if node.op == "IdentityN":
            name, _, _ = node.input[int(index or 0)].partition(":")
            node = nodes[name]
        if node.op not in ("Identity", "IdentityN"):
            return str(name)


def latency_table(reports: Mapping[str, BenchReport]) -> rich.table.Table:
    """Returns a table of the milliseconds per call of both models, of reports by what they call."""
    table = _table("batch", "", "", "stock ms", "fused ms", "speedup")
    for ratios in zip(*(report.ratios for report in reports.values()), strict=True):
        for (what, report), ratio in zip(reports.items(), ratios, strict=True):
            load = (ratio.way, ratio.batch)
            stock, fused = (one for one in report.measurements if (one.way, one.batch) == load)
            table.add_row(
                *(str(ratio.batch), ratio.way, what, f"{stock.p50_ms:.2f}", f"{fused.p50_ms:.2f}"),
                f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})",
            )
    table.caption = (
        "Median milliseconds per call; speedup: median (range) over turns of both models. embed: "
        "the embedding part alone. End to end: from Python, NumPy arrays in and out."
    )
    return table


def run(directory: Path, cap: int, steps: int, seconds: float) -> None:
    """Does what the module promises, in `directory`, with tables of at most `cap` rows.

    Raises:
        DemoError: some step failed, or a promise does not hold.
        ModelError: a model could not be loaded or run.
    """
    stock, fused, log = (str(directory / name) for name in ("stock", "fused", LOG))
    _heading("Train and export with stock columns")
    train(str(directory / "run"), stock, cap, steps, log)
    _heading("Rewrite")
    rewrite(stock, fused, directory / "report.json", log)
    _heading("Compare the outputs of both models, each in a fresh process")
    features = samples(cap)
    console.print(compare(stock, fused, features, directory / "inputs.npz"))
    _heading("Nodes")
    console.print(node_table(stock, fused, {name: ids[:64] for name, ids in features.items()}))
    _heading("Latency")
    from fusion.saved_model import bench_models

    reports = {
        what: bench_models(stock, fused, signature=signature, seconds=seconds)
        for what, signature in SIGNATURES.items()
    }
    console.print(latency_table(reports))


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
    with open(log, "ab") as file:
        status = subprocess.run(command, stderr=file, check=False).returncode
    if status != 0:
        logged = Path(log).read_text(errors="replace").strip().splitlines()[-1:]
        raise DemoError("\n".join([f"`{' '.join(command)}` exited with status {status}", *logged]))


def main() -> int:
    """Runs the demo and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.demo", description=__doc__)
    parser.add_argument("--directory", default=".demo", help="where the models go; %(default)s")
    parser.add_argument("--cap", type=int, default=200_000, help="largest table; %(default)s rows")
    parser.add_argument("--steps", type=int, default=30, help="of training; %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load; %(default)s")
    flags = parser.parse_args()
    directory = Path(flags.directory)
    if directory.is_dir() and any(directory.iterdir()) and not (directory / LOG).is_file():
        console.print(f"{directory}: is not empty and holds no demo; name another --directory")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with open(directory / LOG, "ab") as log:
        os.dup2(log.fileno(), 2)  # TensorFlow logs while it is imported
    from fusion.saved_model import ModelError

    try:
        run(directory, flags.cap, flags.steps, flags.seconds)
    except (DemoError, ModelError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {rich.markup.escape(str(error))}")
        console.print(f"What TensorFlow logged is in {directory / LOG}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
