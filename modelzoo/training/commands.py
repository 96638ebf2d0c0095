"""The command line of a model: train, eval, export and bench."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click
import tensorflow as tf
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from examples.distributed.cluster import CONFIG, start_server
from modelzoo.cluster import is_first
from modelzoo.console import told_plainly
from modelzoo.options import Model, Options
from modelzoo.signatures import EMBEDDINGS, EXAMPLES, SERVING
from modelzoo.training import loop
from modelzoo.training.bench import measure
from modelzoo.training.export import export_graph, export_keras
from modelzoo.training.optimizers import RATES
from modelzoo.training.run import FollowedRun, Run, RunError
from modelzoo.training.setup import (
    build,
    columns_of,
    is_same_data,
    prepare,
    role_of,
    shape_of,
    sources,
    start_others,
)
from modelzoo.training.steps import GraphSteps, KerasSteps

_HELP = {
    "data": "Files, or synthetic.",
    "eval_data": "Files of held-out samples.",
    "cap": "Most ids of a feature, of synthetic data and of hashed words.",
    "rows": "Ids of each feature, of files that do not tell.",
    "ready": "Take counts as they are, not their logarithms.",
    "do_fusion": "Fused embedding columns.",
    "enable": "Call fusion.enable().",
    "style": "Keras 3, or a compat.v1 graph.",
    "strategy": "Train on several devices, in several processes, or with parameter servers.",
    "sharded": "Divide the tables among the replicas of the strategy.",
    "workers": "Workers to start here, of the strategies multiworker and ps.",
    "optimizer": "How weights are changed.",
    "rate": "The learning rate.",
    "batch_size": "Samples of a step.",
    "steps": "When to end.",
    "save_every": "Steps between checkpoints.",
    "eval_every": "Steps between evaluations, 0 for one at the end.",
    "eval_samples": "Held-out samples.",
    "patience": "Evaluations without a better AUC before it ends, 0 for any number.",
    "seed": "Of initial values and synthetic data.",
    "deterministic": "The same numbers each time, with fusion and without.",
    "dim": "Elements of the vectors.",
    "hidden": "Units of the layers on top, by commas.",
}
_CHOICES = {
    "do_fusion": ("v1", "v2"),
    "style": ("keras", "graph"),
    "strategy": ("none", "mirrored", "multiworker", "ps"),
    "optimizer": tuple(RATES),
}
_TYPES = {"cap": int, "rows": int, "rate": float, "dim": int, "eval_data": str, "hidden": str}


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command an option for each of `Options`."""
    for one in reversed(fields(Options)):
        name = f"--{one.name.replace('_', '-')}"
        told: dict[str, Any] = {"default": one.default, "help": _HELP[one.name]}
        if isinstance(one.default, bool):
            told["is_flag"] = True
        elif one.name in _CHOICES:
            told["type"] = click.Choice(_CHOICES[one.name])
        else:
            told["type"] = _TYPES.get(one.name, type(one.default))
        shows = one.default is not None and not isinstance(one.default, bool)
        command = click.option(name, **told, show_default=shows)(command)
    return command


def _words(options: Options) -> list[str]:
    """The options as those of a command."""
    words = []
    for name, value in asdict(options).items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


def commands(model: Model) -> click.Group:
    """The command line of a model."""
    # Feature columns are deprecated, as each of them would say.
    tf.get_logger().setLevel("ERROR")
    group = click.Group(help=f"Train {model.name} on Criteo's data, or data like them.")
    for make in (_train, _eval, _export, _bench):
        group.add_command(make(model))
    return group


def _folder(model: Model) -> Callable[..., Any]:
    kind = click.Path(path_type=Path)
    default = f".zoo/{model.name}"
    return click.option("--run", "folder", type=kind, default=default, show_default=True)


def _train(model: Model) -> click.Command:
    @click.command()
    @_folder(model)
    @click.option("--fresh", is_flag=True, help="Forget what was trained in that folder.")
    @training_options
    def train(folder: Path, fresh: bool, **options: Any) -> None:
        """Train; run again it goes on with the last checkpoint."""
        with told_plainly():
            run = Run(folder, model.name, Options(**options))
            prepare(run.options)
            role = role_of(run.options)
            if role == "serves":
                start_server().join()
            source, held_out = sources(run.options)
            if role == "follows":
                # Building waits for the first worker, which has begun by then.
                steps = build(model, run.options, source)
                followed = FollowedRun(folder, model.name, run.options)
                loop.train(followed, steps, source, held_out, loop.Silent())
                return
            with run.locked():
                if fresh:
                    run.forget()
                step = run.begin().step
                words = ["train", "--run", str(folder), *_words(run.options)]
                start_others(run.options, [f"modelzoo.{model.name}", *words])
                steps = build(model, run.options, source)
                with _Bar(run, step) as watcher:
                    state = loop.train(run, steps, source, held_out, watcher)
        if source.malformed.count:
            click.echo(str(source.malformed))
        ended = "done" if state.step >= run.options.steps else "stopped early"
        seen = "of the training samples" if is_same_data(run.options) else "held-out"
        aucs = [f"; {seen} AUC {one['eval_auc']:.4f}" for one in run.told() if "eval_auc" in one]
        click.echo(f"{ended} at step {state.step}{''.join(aucs[-1:])}")

    return train


def _eval(model: Model) -> click.Command:
    @click.command("eval")
    @_folder(model)
    @click.option("--data", help="Other samples than those held out.")
    @click.option("--samples", type=int, help="How many.")
    def evaluate(folder: Path, data: str | None, samples: int | None) -> None:
        """Evaluate what was trained."""
        with told_plainly():
            run, steps, (_, held_out) = _restored(model, folder)
            options = run.options
            if data is not None:
                held_out = sources(replace(options, data=data, eval_data=None))[1]
            if samples is not None:
                options = replace(options, eval_samples=samples)
            numbers = loop.evaluate(steps, held_out, options)
        click.echo(f"AUC {numbers['eval_auc']:.6f}, loss {numbers['eval_loss']:.6f}")

    return evaluate


def _export(model: Model) -> click.Command:
    @click.command()
    @click.argument("destination", type=click.Path(path_type=Path))
    @_folder(model)
    def export(destination: Path, folder: Path) -> None:
        """Write a SavedModel of what was trained."""
        with told_plainly():
            if not is_first():
                raise RunError(
                    f"export is for one process, and this is not the first one of {CONFIG}: "
                    f"leave it to that one, or unset {CONFIG}"
                )
            if destination.exists():
                raise RunError(f"{destination}: already exists; choose a new path")
            run, steps, (source, _) = _restored(model, folder)
            columns, shape = columns_of(run.options, source), shape_of(model, run.options)
            if isinstance(steps, KerasSteps):
                export_keras(steps, columns.inputs, destination)
            else:
                export_graph(model, shape, columns, run.checkpoint(), destination)
        click.echo(f"{destination}: signatures {SERVING}, {EXAMPLES} and {EMBEDDINGS}")

    return export


def _bench(model: Model) -> click.Command:
    @click.command()
    @click.option("--rounds", type=int, default=10, show_default=True)
    @click.option("--steps-per-round", type=int, default=20, show_default=True)
    @click.option("--variants", default="", help="By commas; all by default.")
    @click.option("--json", "target", type=click.Path(path_type=Path), help="Where numbers go.")
    @training_options
    def bench(
        rounds: int, steps_per_round: int, variants: str, target: Path | None, **options: Any
    ) -> None:
        """Measure a step without fusion and with it, side by side, of the same numbers."""
        with told_plainly():
            told = Options(**options)
            if told.strategy != "none":
                raise RunError("bench measures steps on one device: leave out --strategy")
            if told.sharded:
                raise RunError("bench compares columns and layers: leave out --sharded")
            # Which variant is fused is the measurement's own choice.
            prepare(replace(told, enable=False))
            source, _ = sources(told)
            names = [*filter(None, variants.split(","))]
            found = measure(model, told, source, rounds, steps_per_round, names)
        for name, one in found["variants"].items():
            low, middle, high = one["speedup"]
            click.echo(
                f"{name:13} {one['milliseconds']:8.2f} ms a step, "
                f"{one['samples_per_second']:10,.0f} samples/s, "
                f"{middle:.2f}x ({low:.2f} to {high:.2f})"
            )
        if target is not None:
            target.write_text(json.dumps(found, indent=1) + "\n")

    return bench


def _restored(model: Model, folder: Path) -> tuple[Run, KerasSteps | GraphSteps, Any]:
    """A training, its model with the weights of the last checkpoint, and its samples.

    Whatever trained it, one device is enough.
    """
    run = Run.opened(folder)
    if run.model != model.name:
        raise RunError(f"{folder}: a training of {run.model}, not of {model.name}")
    if not run.state().step:
        raise RunError(f"{folder}: no checkpoint yet")
    options = replace(run.options, strategy="none")
    prepare(options)
    both = sources(options)
    steps = build(model, options, both[0])
    run.restore(steps)
    return run, steps, both


class _Bar:
    """A bar with what was measured, and TensorBoard's logs in the run's folder."""

    def __init__(self, run: Run, step: int) -> None:
        self._run, self._step = run, step
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )

    def __enter__(self) -> _Bar:
        self._logs = tf.summary.create_file_writer(str(self._run.folder / "logs"))
        self._bar.start()
        steps = self._run.options.steps
        self._task = self._bar.add_task("", total=steps, completed=self._step, told="")
        self._evaluated = ""
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._logs.close()

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        """See `loop.Watcher`."""
        told = (
            f"loss {numbers['loss']:.4f}, AUC {numbers['auc']:.4f}{self._evaluated}, "
            f"{numbers['samples_per_second']:,.0f} samples/s"
        )
        self._bar.update(self._task, completed=step, told=told)
        self._write(step, numbers)

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        """See `loop.Watcher`."""
        self._evaluated = f", held out {numbers['eval_auc']:.4f}"
        self._write(step, numbers)

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        with self._logs.as_default(step):
            for name, number in numbers.items():
                tf.summary.scalar(name, number)
