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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from modelzoo.results_page import BATCHES, MODELS, STEPS, STYLES, VARIANTS, page
from modelzoo.signatures import EMBEDDINGS, SERVING

_ROOT = Path(__file__).parents[1]
_KEPT = Path(__file__).parent / "results"
_PAGE = Path(__file__).parent / "RESULTS.md"

PARTS = ("pipeline", "steps", "trainings", "inference")


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
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Others are kept.")
@click.option("--steps", default=500, show_default=True, help="Of the trainings for AUC.")
@click.option("--rounds", default=15, show_default=True)
def run(models: str, parts: str, steps: int, rounds: int) -> None:
    """Measure everything, or some of it, each model in processes of its own."""
    _KEPT.mkdir(exist_ok=True)
    asked = set(parts.split(","))
    with tempfile.TemporaryDirectory() as folder:
        data = _Data(Path(folder))
        if "pipeline" in asked:
            _keep("pipeline", {str(batch): data.rates(batch) for batch in BATCHES})
        for model in filter(None, models.split(",")):
            for part in PARTS[1:]:
                if part in asked:
                    with tempfile.TemporaryDirectory() as own:
                        told = _measured(part, model, data, Path(own), steps, rounds)
                    kept = _kept(model)
                    dates = kept.get("dates", {}) | {part: _today()}
                    _keep(model, kept | _where() | {"model": model, "dates": dates, part: told})


def _keep(name: str, found: dict[str, Any]) -> None:
    (_KEPT / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def _kept(name: str) -> dict[str, Any]:
    file = _KEPT / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


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


def _where() -> dict[str, str]:
    import tensorflow as tf

    return {"machine": _machine(), "tensorflow": tf.__version__}


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def _measured(
    part: str, model: str, data: _Data, folder: Path, steps: int, rounds: int
) -> dict[str, Any]:
    if part == "steps":
        each = [(name, batch) for name in STEPS for batch in BATCHES]
        return {f"{one} {batch}": _steps(model, one, batch, folder, rounds) for one, batch in each}
    if part == "inference":
        return {style: _inference(model, style, folder / style) for style in STYLES}
    return {
        style: {
            variant: _trained(model, style, variant, data, folder / f"{style}-{variant}", steps)
            for variant in VARIANTS
        }
        for style in STYLES
    }


def _steps(model: str, name: str, batch: int, folder: Path, rounds: int) -> dict[str, Any]:
    target = folder / "bench.json"
    rounds_of = ("--rounds", rounds, "--steps-per-round", max(10240 // batch, 5))
    order = (*STEPS[name], "--batch-size", batch, *rounds_of)
    _command(model, "bench", *order, "--json", target)
    found: dict[str, Any] = json.loads(target.read_text())["variants"]
    return found


def _inference(model: str, style: str, folder: Path) -> dict[str, Any]:
    """By signature, of the export of a model of stock columns that has hardly been trained."""
    run, exported, fused = (folder / name for name in ("run", "exported", "fused"))
    order = ("--style", style, "--steps", 5, "--eval-every", 0, "--eval-samples", 1000)
    _command(model, "train", "--run", run, *order)
    _command(model, "export", exported, "--run", run)
    # Names and no paths, which the numbers that are kept would have.
    models = exported.name, fused.name
    _fusion(folder, "rewrite", *models)
    found = {}
    for signature in (SERVING, EMBEDDINGS):
        target = folder / f"{signature}.json"
        _fusion(
            *(folder, "bench", *models, "--signature", signature, "--seconds", 2),
            *("--batch", ",".join(map(str, BATCHES)), "--json", target, "--tolerance", "1e-5"),
        )
        found[signature] = json.loads(target.read_text())
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


def _fusion(folder: Path, *words: object) -> None:
    """Runs the command `fusion` in a folder."""
    tool = Path(sys.executable).with_name("fusion")
    click.echo("$ fusion " + " ".join(map(str, words)))
    subprocess.run([str(tool), *map(str, words)], check=True, cwd=folder, capture_output=True)


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((one.split(":", 1)[1].strip() for one in lines if one.startswith("model name")), "")
    return f"{os.cpu_count()} processors, {name or platform.processor()}"


@main.command()
def report() -> None:
    """Write the page and its plots from what was measured."""
    measured = {name: _kept(name) for name in (*MODELS, "pipeline")}
    _PAGE.write_text("\n".join(page(measured, _KEPT)).rstrip() + "\n")
    click.echo(str(_PAGE.relative_to(_ROOT)))


if __name__ == "__main__":
    main(prog_name="python -m modelzoo.results")
