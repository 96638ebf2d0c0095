"""`python -m modelzoo.criteo convert|generate|bench`: data for the models."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from modelzoo.console import told_plainly
from modelzoo.criteo import convert as converter
from modelzoo.criteo.source import open_source
from modelzoo.criteo.synthetic import CriteoData

_WARM_UP = 20


@click.group(help=__doc__)
def main() -> None:
    """The command line."""


def _progress() -> tuple[Progress, converter.Progress]:
    """A bar, and what moves it."""
    bar = Progress(
        TextColumn("{task.percentage:>3.0f} %"),
        BarColumn(),
        TextColumn("{task.fields[samples]:,} samples, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
        transient=True,
    )
    task, start = bar.add_task("", total=1.0, samples=0, rate=0.0), time.monotonic()

    def told(share: float, samples: int) -> None:
        rate = samples / max(time.monotonic() - start, 1e-3)
        bar.update(task, completed=share, samples=samples, rate=rate)

    return bar, told


@main.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(converter.TARGETS), default="parquet")
@click.option(
    "--encoding", type=click.Choice(converter.ENCODINGS), default="hash", show_default=True
)
@click.option("--cap", type=int, help="Most ids of a feature, where they are hashed.")
@click.option("--least", type=int, default=10, show_default=True, help="How often a word occurs.")
@click.option(
    "--words", help="A converted folder whose vocabularies are taken, as for held-out lines."
)
@click.option("--log", is_flag=True, help="Counts become log(1 + x).")
@click.option(
    "--part", type=int, default=converter.PART, show_default=True, help="Samples of a file."
)
def convert(source: Path, destination: Path, **plan: object) -> None:
    """Convert Criteo's text files; run again it goes on where it was killed."""
    bar, told = _progress()
    with told_plainly(), bar:
        settings = converter.Plan(**plan)  # type: ignore[arg-type]
        info, malformed = converter.convert(source, destination, settings, told)
    click.echo(f"{info.samples} samples in {destination}")
    if malformed.count:
        click.echo(str(malformed))


@main.command()
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--samples", type=int, default=1 << 20, show_default=True)
@click.option("--to", "target", type=click.Choice(converter.TARGETS), default="parquet")
@click.option("--cap", type=int, help="Most ids of a feature.")
@click.option("--missing", type=float, default=0.02, show_default=True, help="Share of ids.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--part", type=int, default=converter.PART, show_default=True, help="Samples of a file."
)
def generate(
    destination: Path,
    samples: int,
    target: str,
    cap: int | None,
    missing: float,
    seed: int,
    part: int,
) -> None:
    """Write synthetic samples in the shape of Criteo's."""
    bar, told = _progress()
    with told_plainly(), bar:
        data = CriteoData(cap=cap, missing=missing, seed=seed)
        info = converter.generate(destination, data, samples, target, part, told)
    click.echo(f"{info.samples} samples in {destination}")


@main.command()
@click.argument("data")
@click.option("--batch-size", type=int, default=512, show_default=True)
@click.option("--seconds", type=float, default=10.0, show_default=True)
@click.option("--cap", type=int, help="Most ids of a feature, where they are hashed.")
@click.option("--rows", type=int, help="Ids of each feature, of files that do not tell.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Where numbers go.")
def bench(
    data: str,
    batch_size: int,
    seconds: float,
    cap: int | None,
    rows: int | None,
    target: Path | None,
) -> None:
    """Measure how many samples a second the pipeline alone gives."""
    with told_plainly():
        source = open_source(data, cap, rows=rows)
        batches = iter(source.dataset(batch_size).repeat().prefetch(8))
        for _ in range(_WARM_UP):
            next(batches)
        rates: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start, samples = time.monotonic(), 0
            while time.monotonic() < start + seconds / 10:
                samples += int(next(batches)[1].shape[0])
            rates.append(samples / (time.monotonic() - start))
    low, middle, high = min(rates), statistics.median(rates), max(rates)
    click.echo(f"{middle:,.0f} samples/s ({low:,.0f} to {high:,.0f}), batches of {batch_size}")
    if target is not None:
        target.write_text(json.dumps([low, middle, high]) + "\n")


if __name__ == "__main__":
    main(prog_name="python -m modelzoo.criteo")
