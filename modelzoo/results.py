"""Measures the models on this machine, and writes `modelzoo/RESULTS.md` of what was measured.

`python -m modelzoo.results run` takes half an hour and writes JSON to `modelzoo/results/`;
`python -m modelzoo.results report` writes the page and the plots of it.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fusion.saved_model.bench.report import END_TO_END, IN_GRAPH, BenchReport

_ROOT = Path(__file__).parents[1]
_KEPT = Path(__file__).parent / "results"
_PAGE = Path(__file__).parent / "RESULTS.md"

MODELS = ("wide_deep", "deepfm", "dlrm")
VARIANTS = ("stock", "v1", "v2", "enable")
STYLES = ("graph", "keras")
BATCHES = (512, 4096)
#: DeepRec's own table, do_fusion="v2" on an A100, whole steps, by batch size.
DEEPREC = {"wide_deep": (1.07, 1.12), "deepfm": (1.29, 1.29), "dlrm": (1.34, 1.31)}
_TITLES = {"wide_deep": "Wide and deep", "deepfm": "DeepFM", "dlrm": "DLRM"}
_COLORS = {"stock": "0.5", "v1": "tab:orange", "v2": "tab:blue", "enable": "tab:green"}
_STYLES_TOLD = {
    "graph": "compat.v1: `input_layer` in a Session",
    "keras": "Keras 3: `fusion.feature_column.DenseFeatures`",
}


@click.group(help=__doc__)
def main() -> None:
    """The command line."""


def _command(model: str, *words: object) -> None:
    """Runs a model's command; what it says is told if it fails."""
    order = [sys.executable, "-m", f"modelzoo.{model}", *map(str, words)]
    click.echo("$ " + " ".join(["python", *order[1:]]))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        order, cwd=_ROOT, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise click.ClickException(done.stderr[-2000:] or done.stdout[-2000:])


@main.command()
@click.option("--models", default=",".join(MODELS), show_default=True)
@click.option("--steps", default=500, show_default=True, help="Of the trainings for AUC.")
@click.option("--rounds", default=15, show_default=True)
def run(models: str, steps: int, rounds: int) -> None:
    """Measure everything, each model in processes of its own."""
    _KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        data = _Data(Path(folder))
        found = {str(batch): data.rates(batch) for batch in BATCHES}
        (_KEPT / "pipeline.json").write_text(json.dumps(found, indent=1) + "\n")
        for model in filter(None, models.split(",")):
            with tempfile.TemporaryDirectory() as own:
                told = _measured(model, data, Path(own), steps, rounds)
            (_KEPT / f"{model}.json").write_text(json.dumps(told, indent=1) + "\n")


class _Data:
    """Synthetic samples in Parquet files, to train with and held out."""

    def __init__(self, folder: Path) -> None:
        self.train, self.held_out = folder / "train", folder / "held-out"
        parts = ("--samples", 17 << 16, "--part", 1 << 16, "--cap", 200_000)
        _command("criteo", "generate", self.train, *parts)
        self.held_out.mkdir()
        (self.train / "part-00016.parquet").rename(self.held_out / "part-00000.parquet")
        shutil.copy(self.train / "criteo.json", self.held_out)

    def rates(self, batch: int) -> list[float]:
        """Samples per second of the pipeline alone: least, median and most."""
        target = self.train.with_name("rates.json")
        _command("criteo", "bench", self.train, "--batch-size", batch, "--json", target)
        rates: list[float] = json.loads(target.read_text())
        return rates


def _measured(model: str, data: _Data, folder: Path, steps: int, rounds: int) -> dict[str, Any]:
    import tensorflow as tf

    found: dict[str, Any] = {
        "model": model,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": _machine(),
        "tensorflow": tf.__version__,
        "steps": {},
        "trainings": {},
        "inference": {},
    }
    for style in STYLES:
        for batch in BATCHES:
            target = folder / "bench.json"
            in_a_row = max(10240 // batch, 5)
            rounds_of = ("--rounds", rounds, "--steps-per-round", in_a_row)
            order = ("--style", style, "--batch-size", batch, *rounds_of)
            _command(model, "bench", *order, "--json", target)
            found["steps"][f"{style} {batch}"] = json.loads(target.read_text())["variants"]
        found["trainings"][style] = {
            variant: _trained(model, style, variant, data, folder / f"{style}-{variant}", steps)
            for variant in VARIANTS
        }
        exported, fused, target = (folder / f"{style}-{name}" for name in ("sm", "fused", "json"))
        _command(model, "export", exported, "--run", folder / f"{style}-stock")
        _fusion("rewrite", exported, fused)
        _fusion(
            *("bench", exported, fused, "--signature", "serving_default", "--seconds", 2),
            *("--batch", ",".join(map(str, BATCHES)), "--json", target, "--tolerance", "1e-5"),
        )
        found["inference"][style] = json.loads(target.read_text())
    return found


def _trained(
    model: str, style: str, variant: str, data: _Data, folder: Path, steps: int
) -> dict[str, Any]:
    options = {
        "stock": (),
        "v1": ("--do-fusion", "v1"),
        "v2": ("--do-fusion", "v2"),
        "enable": ("--enable",),
    }[variant]
    files = ("--data", data.train, "--eval-data", data.held_out)
    order = ("--style", style, "--deterministic", "--steps", steps, "--eval-every", steps // 5)
    start = time.monotonic()
    _command(model, "train", "--run", folder, *files, *order, "--save-every", steps, *options)
    seconds = time.monotonic() - start
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {"seconds": seconds, "told": [json.loads(line) for line in lines]}


def _fusion(*words: object) -> None:
    tool = Path(sys.executable).with_name("fusion")
    click.echo("$ fusion " + " ".join(map(str, words)))
    subprocess.run([str(tool), *map(str, words)], check=True, cwd=_ROOT, capture_output=True)


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((one.split(":", 1)[1].strip() for one in lines if one.startswith("model name")), "")
    return f"{os.cpu_count()} processors, {name or platform.processor()}"


@main.command()
def report() -> None:
    """Write the page and its plots from what was measured."""
    measured = {model: json.loads((_KEPT / f"{model}.json").read_text()) for model in MODELS}
    plots = [*_plots(measured)]
    _PAGE.write_text("\n".join(_page(measured, plots)).rstrip() + "\n")
    click.echo(str(_PAGE.relative_to(_ROOT)))


def _page(measured: dict[str, Any], plots: list[Path]) -> Iterator[str]:
    one = measured[MODELS[0]]
    yield "# Results of the model zoo"
    yield ""
    yield (
        f"Measured on {one['date']} with TensorFlow {one['tensorflow']} on {one['machine']}, by "
        "`python -m modelzoo.results run`; this page is written by `python -m modelzoo.results "
        "report`. Synthetic data, tables of at most 200,000 rows, LazyAdam."
    )
    for style in STYLES:
        yield from _steps_table(measured, style)
    yield from _inference_table(measured)
    yield from _auc_table(measured)
    yield from _pipeline_table(measured)
    yield "## Plots"
    yield ""
    for plot in plots:
        yield f"![{plot.stem}]({plot.relative_to(_PAGE.parent)})"
        yield ""


def _steps_table(measured: dict[str, Any], style: str) -> Iterator[str]:
    yield ""
    yield f"## A step of training, {_STYLES_TOLD[style]}"
    yield ""
    if style == "keras":
        yield (
            "Keras 3 has no such layer of its own. With stock columns ours looks single ids up "
            "with few stock ops already, which is what `stock` is here."
        )
        yield ""
    yield (
        "Milliseconds of a whole step, samples per second, and the speedup over stock: the median "
        "of rounds in which the variants took turns in one process, with least and most. The "
        "losses agreed before. DeepRec is what it publishes for `do_fusion='v2'` on an NVIDIA A100."
    )
    yield ""
    yield "| model | batch | variant | ms | samples/s | speedup | DeepRec |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    for model in MODELS:
        for place, batch in enumerate(BATCHES):
            for variant in VARIANTS:
                found = measured[model]["steps"][f"{style} {batch}"][variant]
                low, middle, high = found["speedup"]
                published = f"{DEEPREC[model][place]:.2f}" if variant == "v2" else ""
                speedup = "" if variant == "stock" else f"{middle:.2f} ({low:.2f} to {high:.2f})"
                yield (
                    f"| {_TITLES[model]} | {batch} | {variant} | {found['milliseconds']:.1f} | "
                    f"{found['samples_per_second']:,.0f} | {speedup} | {published} |"
                )


def _inference_table(measured: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## Inference of the export, before and after `fusion rewrite`"
    yield ""
    yield (
        "Calls per second of the rewritten export of stock columns over the original's, by `fusion "
        "bench`, one client."
    )
    yield ""
    yield "| model | style | batch | in the graph | end to end |"
    yield "|---|---|---:|---:|---:|"
    for model in MODELS:
        for style in STYLES:
            found = BenchReport.from_dict(measured[model]["inference"][style])
            for batch in BATCHES:
                ratios = {one.way: one for one in found.ratios if one.batch == batch}
                shown = [
                    f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})"
                    for one in (ratios[IN_GRAPH], ratios[END_TO_END])
                ]
                yield f"| {_TITLES[model]} | {style} | {batch} | {' | '.join(shown)} |"


def _auc_table(measured: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## AUC of held-out samples"
    yield ""
    yield (
        "After the same steps at batch 512, deterministic; and the seconds of the longest of the "
        "four trainings, from the start of the command to its end."
    )
    yield ""
    yield "| model | style | " + " | ".join(VARIANTS) + " | most apart | steps | seconds |"
    yield "|---|---|" + "---:|" * (len(VARIANTS) + 3)
    for model in MODELS:
        for style in STYLES:
            trained = measured[model]["trainings"][style]
            aucs = [_aucs(trained[variant])[-1][1] for variant in VARIANTS]
            shown = " | ".join(f"{auc:.5f}" for auc in aucs)
            seconds = max(trained[variant]["seconds"] for variant in VARIANTS)
            steps = trained["stock"]["told"][-1]["step"]
            apart = f"{max(aucs) - min(aucs):.1e}"
            yield f"| {_TITLES[model]} | {style} | {shown} | {apart} | {steps} | {seconds:.0f} |"
    yield ""


def _pipeline_table(measured: dict[str, Any]) -> Iterator[str]:
    rates = json.loads((_KEPT / "pipeline.json").read_text())
    yield "## The input pipeline"
    yield ""
    yield (
        "Samples per second that the pipeline alone gives from Parquet files on all processors, "
        "and those that the quickest training above takes of batches in memory, also as a share of "
        "the former. The trainings for the AUCs read such files as they go, in batches of 512: "
        f"they waited for a batch for {_waiting(measured)} of their time (median, and the most of "
        "any ten steps behind the first hundred)."
    )
    yield ""
    yield "| batch | pipeline | quickest training | share |"
    yield "|---:|---:|---:|---:|"
    for batch in BATCHES:
        low, middle, high = rates[str(batch)]
        used = max(
            one["samples_per_second"]
            for model in MODELS
            for style in STYLES
            for one in measured[model]["steps"][f"{style} {batch}"].values()
        )
        yield (
            f"| {batch} | {middle:,.0f} ({low:,.0f} to {high:,.0f}) | {used:,.0f} | "
            f"{used / middle:.0%} |"
        )
    yield ""


def _waiting(measured: dict[str, Any]) -> str:
    """The share of the time of steps that passes until there is a batch."""
    shares = [
        one["waiting"]
        for model in MODELS
        for trained in measured[model]["trainings"].values()
        for variant in trained.values()
        for one in variant["told"]
        if "waiting" in one and one["step"] > 100
    ]
    return f"{statistics.median(shares):.1%} ({max(shares):.0%})"


def _aucs(trained: dict[str, Any]) -> list[tuple[int, float]]:
    """The steps and the AUCs of held-out samples."""
    return [(one["step"], one["eval_auc"]) for one in trained["told"] if "eval_auc" in one]


def _plots(measured: dict[str, Any]) -> Iterator[Path]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fusion"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(MODELS), figsize=(12, 3.4), sharey=True)
    for axis, model in zip(axes, MODELS, strict=True):
        for variant in VARIANTS:
            axis.plot(
                *zip(*_aucs(measured[model]["trainings"]["graph"][variant]), strict=True),
                label=variant,
                color=_COLORS[variant],
                linewidth=1 + 2 * (VARIANTS[::-1].index(variant)),
                alpha=0.7,
            )
        axis.set(title=_TITLES[model], xlabel="step")
    axes[0].set_ylabel("held-out AUC")
    axes[-1].legend()
    yield _saved(figure, "learning")
    figure, axes = plt.subplots(1, len(BATCHES), figsize=(9, 3.4), sharey=True)
    for axis, batch in zip(axes, BATCHES, strict=True):
        for shift, variant in enumerate(VARIANTS[1:]):
            bars = [
                measured[model]["steps"][f"graph {batch}"][variant]["speedup"] for model in MODELS
            ]
            middle = [one[1] for one in bars]
            errors = [[one[1] - one[0] for one in bars], [one[2] - one[1] for one in bars]]
            places = [place + 0.27 * (shift - 1) for place in range(len(MODELS))]
            axis.bar(places, middle, 0.25, yerr=errors, label=variant, color=_COLORS[variant])
        axis.axhline(1, color="0.5")
        axis.set_xticks(range(len(MODELS)), [_TITLES[model] for model in MODELS])
        axis.set_title(f"batch {batch}")
    axes[0].set_ylabel("steps per second over stock's")
    axes[-1].legend()
    yield _saved(figure, "speedup")


def _saved(figure: Any, name: str) -> Path:
    path = _KEPT / f"{name}.svg"
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    main(prog_name="python -m modelzoo.results")
