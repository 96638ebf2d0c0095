"""Models with sharded tables train as those with columns, on any number of replicas."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from examples.distributed.cluster import CONFIG
from modelzoo import criteo
from modelzoo.criteo.convert import generate
from modelzoo.options import Architecture, Model, Options
from modelzoo.sharded import ShardedEmbeddings
from modelzoo.training import loop
from modelzoo.training.commands import commands
from modelzoo.training.run import FollowedRun, Run, RunError
from modelzoo.training.setup import build, role_of
from modelzoo.training.steps import KerasSteps
from tests import zygote
from tests.modelzoo.small import MODELS, SMALL, few
from tests.modelzoo.test_training import ROOT


@pytest.mark.parametrize(
    ("name", "optimizer"), [("wide_deep", "adagrad"), ("deepfm", "lazy-adam"), ("dlrm", "adam")]
)
def test_models_learn_the_same_with_shards(name: str, optimizer: str) -> None:
    source, held_out = few(SMALL)
    batches = loop.first_batches(source, 32, 4)
    told = {}
    for sharded in (False, True):
        options = replace(SMALL, sharded=sharded, optimizer=optimizer)
        steps = build(MODELS[name], options, source)
        losses = [steps.train(*batch)[0] for batch in batches * 2]
        told[sharded] = [*losses, *loop.evaluate(steps, held_out, options).values()]
    assert isinstance(steps, KerasSteps)
    assert sum(isinstance(layer, ShardedEmbeddings) for layer in steps.model.layers) == 1
    assert len({*told[True]}) == len(told[True])
    np.testing.assert_allclose(told[True], told[False], rtol=1e-6)


def train(folder: Path, options: Options, name: str = "deepfm") -> str:
    """Trains by the command, and returns what it prints at last."""
    words = [f"--{key}={value}" for key, value in WORDS.items()]
    words += [f"--data={options.data}", f"--steps={options.steps}", f"--run={folder}"]
    words += [f"--strategy={options.strategy}", *(["--sharded"] if options.sharded else [])]
    order = [sys.executable, "-m", "tests.modelzoo.command", name, "train", *words]
    done = zygote.run(order, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout.splitlines()[-1])


#: Of three steps in which all samples are read, the last one has a single sample.
SAMPLES, STEPS = 67, 4
WORDS = {"cap": 100, "dim": 4, "batch-size": 33, "eval-samples": 60, "save-every": STEPS}


def alone(folder: Path, data: str, ends: Sequence[int]) -> list[dict[str, Any]]:
    """What one device tells of the same steps, with columns."""
    options = replace(SMALL, data=data, batch_size=33, eval_samples=60, save_every=STEPS)
    source, held_out = few(options)
    steps = build(MODELS["deepfm"], options, source)
    for end in ends:
        run = Run(folder, "deepfm", replace(options, steps=end))
        loop.train(run, steps, source, held_out, loop.Silent())
    return [*run.told()]


def check_replicas(folder: Path, strategies: Sequence[str], sharded: bool) -> None:
    """Trains with one strategy after the other, which have the numbers of one device."""
    generate(folder / "data", criteo.CriteoData(cap=100), SAMPLES)
    options = Options(data=str(folder / "data"), sharded=sharded)
    ends = [STEPS * (k + 1) for k in range(len(strategies))]
    for end, strategy in zip(ends, strategies, strict=True):
        line = train(folder / "run", replace(options, strategy=strategy, steps=end))
        assert line.startswith(f"done at step {end}; of the training samples AUC 0.")
    told = [*Run.opened(folder / "run").told()]
    for one, other in zip(told, alone(folder / "alone", options.data, ends), strict=True):
        for name in {*other} - {"samples_per_second", "waiting"}:
            assert one[name] == pytest.approx(other[name], rel=1e-6)


@pytest.mark.costly(0)
def test_shards_train_as_columns_and_go_on_with_any_number_of_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two processes, then on two devices; and one device evaluates what these trained."""
    check_replicas(tmp_path, ["multiworker", "mirrored"], sharded=True)
    monkeypatch.setattr("modelzoo.training.commands.sources", few)
    folder = tmp_path / "run"
    ended = CliRunner().invoke(commands(MODELS["deepfm"]), ["eval", "--run", str(folder)])
    *_, last = Run.opened(folder).told()
    line = f"AUC {last['eval_auc']:.6f}, loss {last['eval_loss']:.6f}"
    assert ended.output.splitlines()[-1] == line
    assert len([*(folder / "checkpoints").iterdir()]) == 2  # of the first process alone


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "ps"}, "leave out --sharded, or train with --strategy multiworker"),
        ({"style": "graph"}, "are for style 'keras': leave out --style or --sharded"),
        ({"do_fusion": "v2"}, "have no columns: leave out --do-fusion or --sharded"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"strategy": "multiworker", "style": "graph"}, "'multiworker' is for style 'keras'"),
    ],
)
def test_options_that_shards_cannot_have(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(sharded=True, **wrong)


def test_a_model_without_tables_is_refused() -> None:
    def logits(layers: Any, shape: Any) -> Any:
        return layers.dense(layers.counts(), 1, "logit")

    source, _ = few(SMALL)
    with pytest.raises(ValueError, match=r"'counts' has no tables, which --sharded divides"):
        build(Model("counts", logits, Architecture(1, ())), replace(SMALL, sharded=True), source)


def as_task(monkeypatch: pytest.MonkeyPatch, job: str, index: int, *jobs: str) -> None:
    """Makes this process one of a cluster."""
    cluster = {name: [f"{name}:1", f"{name}:2"] for name in jobs}
    task = {"type": job, "index": index}
    monkeypatch.setenv(CONFIG, json.dumps({"cluster": cluster, "task": task}))


@pytest.mark.parametrize(
    ("strategy", "job", "index", "role"),
    [
        ("multiworker", "worker", 0, "leads"),
        ("multiworker", "worker", 1, "follows"),
        ("multiworker", "ps", 0, None),
        ("ps", "chief", 0, "leads"),
        ("ps", "worker", 0, "serves"),
        ("ps", "ps", 0, "serves"),
        ("ps", "evaluator", 0, None),
        ("none", "worker", 1, "leads"),
    ],
)
def test_roles_of_processes(
    monkeypatch: pytest.MonkeyPatch, strategy: str, job: str, index: int, role: str | None
) -> None:
    options = replace(SMALL, strategy=strategy)
    assert role_of(options) == "leads"
    as_task(monkeypatch, job, index, *(["chief"] if strategy == "ps" else []), "worker")
    if role is None:
        with pytest.raises(ValueError, match=f"job must be one of .*, got {job}"):
            role_of(options)
    else:
        assert role_of(options) == role


def test_the_first_worker_follows_a_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    as_task(monkeypatch, "worker", 0, "chief", "worker")
    assert role_of(replace(SMALL, strategy="multiworker")) == "follows"


def test_one_process_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_task(monkeypatch, "worker", 1, "worker")
    ended = CliRunner().invoke(commands(MODELS["dlrm"]), ["export", str(tmp_path / "model")])
    assert ended.exit_code == 1
    line = ended.output.splitlines()[-1]
    assert line.startswith("Error: export is for one process")
    assert line.endswith("leave it to that one, or unset TF_CONFIG")


def test_measurements_have_no_shards() -> None:
    ended = CliRunner().invoke(commands(MODELS["dlrm"]), ["bench", "--sharded"])
    assert ended.exit_code == 1
    assert ended.output.splitlines()[-1].endswith("leave out --sharded")


def test_workers_that_follow_do_what_the_first_one_does(tmp_path: Path) -> None:
    options = replace(SMALL, strategy="multiworker")
    followed = FollowedRun(tmp_path / "run", "dlrm", options)
    with pytest.raises(RunError, match="all workers need to see one --run"):
        followed.begin()
    first = Run(tmp_path / "run", "dlrm", options)
    assert followed.folder == first.folder
    assert first.begin() == followed.begin()
    with pytest.raises(RunError, match="was given other options than this one"):
        replace(followed, options=replace(options, steps=99)).begin()
