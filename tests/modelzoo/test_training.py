"""Training of the models: it learns the same with fusion, and goes on where it was killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import fusion
from modelzoo import criteo
from modelzoo.criteo.convert import generate
from modelzoo.deepfm.model import second_order
from modelzoo.dlrm.model import products
from modelzoo.options import Architecture, Model, Options
from modelzoo.training import loop
from modelzoo.training.bench import measure, variants
from modelzoo.training.commands import commands
from modelzoo.training.run import Run, RunError, State
from modelzoo.training.scores import auc
from modelzoo.training.setup import build, sources
from modelzoo.training.steps import Scored, Steps
from tests import zygote
from tests.modelzoo.small import FEW, MODELS, SMALL, few

ROOT = Path(__file__).parents[2]
#: The module and its arguments by which a model of few features is trained.
COMMAND = ("tests.modelzoo.command", "dlrm")


@pytest.mark.parametrize("seed", range(5))
def test_auc_counts_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, 9, 60).astype(np.float32)
    above = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert auc(labels, scores) == pytest.approx(((above > 0) + 0.5 * (above == 0)).mean())
    assert auc(labels, labels) == 1.0


def test_auc_of_one_class_is_no_number() -> None:
    assert np.isnan(auc(np.ones(3), np.arange(3)))
    assert np.isnan(auc(np.array([0, 1]), np.array([np.nan, 1.0])))


def test_the_second_order_is_the_sum_over_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 39, 4)).astype(np.float32)
    pairs = np.einsum("nid,njd->nij", vectors, vectors)
    wanted = np.triu(pairs, 1).sum(axis=(1, 2))
    found = second_order(tf.constant(vectors.reshape(5, -1)), 4)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-4, atol=1e-4)


def test_products_are_those_of_all_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 27, 4)).astype(np.float32)
    found = products(tf.constant(vectors.reshape(5, -1)), 4).numpy()
    wanted = [vectors[:, i] * vectors[:, j] for i in range(27) for j in range(i)]
    np.testing.assert_allclose(found, np.stack(wanted, 1).sum(axis=2), rtol=1e-4, atol=1e-5)


def logistic(layers: Any, shape: Any) -> Any:
    """A weight for each count and each id, and a bias."""
    (weights,) = layers.embeddings(weights=1)
    weights = keras.ops.sum(weights, axis=1, keepdims=True)
    return layers.dense(layers.counts(), 1, "logit") + weights


def test_a_logistic_model_learns_what_each_feature_says(tmp_path: Path) -> None:
    model = Model("logistic", logistic, Architecture(1, ()))
    options = Options(cap=1000, steps=200, optimizer="adagrad", rate=0.1, eval_samples=20_000)
    source, held_out = sources(options)
    run = Run(tmp_path / "run", "logistic", options)
    loop.train(run, build(model, options, source), source, held_out, loop.Silent())
    assert [*run.told()][-1]["eval_auc"] >= 0.70


@pytest.mark.parametrize("style", ["keras", "graph"])
@pytest.mark.parametrize("name", MODELS)
def test_models_learn_the_same_with_fusion(name: str, style: str) -> None:
    options = replace(SMALL, style=style, optimizer="sgd")
    source, _ = few(options)
    batches = loop.first_batches(source, 32, 4)
    losses = {}
    for variant in ("stock", "v2") if style == "keras" else ("stock", "enable"):
        own = replace(options, do_fusion="v2" if variant == "v2" else None)
        steps = build(MODELS[name], own, source)
        before = fusion.stats().columns_fused
        with fusion.fused() if variant == "enable" else nullcontext():
            losses[variant] = [steps.train(*batch)[0] for batch in batches * 3]
        if variant == "enable":
            assert fusion.stats().columns_fused - before >= len(FEW)
    (stock, fused) = losses.values()
    assert stock[-1] < stock[0]
    np.testing.assert_allclose(fused, stock, rtol=1e-5)


@pytest.mark.parametrize(("style", "stops"), [("keras", [7]), ("graph", [4, 11])])
def test_training_that_goes_on_ends_as_one_that_was_not_stopped(
    tmp_path: Path, style: str, stops: list[int]
) -> None:
    check_going_on(tmp_path, style, stops)


def check_going_on(folder: Path, style: str, stops: Sequence[int]) -> None:
    """Stopped behind these steps, training ends as one that was not."""
    generate(folder / "data", criteo.CriteoData(cap=100), 200)
    # With 200 samples the data end in each seventh step.
    options = replace(SMALL, data=str(folder / "data"), style=style, optimizer="adagrad")
    source, held_out = few(options)
    ends = []
    for part in ([], stops):
        path = folder / f"run{len(part)}"
        for steps in [*part, options.steps]:
            run = Run(path, "dlrm", replace(options, steps=steps))
            steps_of = build(MODELS["dlrm"], options, source)
            state = loop.train(run, steps_of, source, held_out, loop.Silent())
        assert (state.step, state.epoch, state.batch) == (12, 1, 5)
        ends.append([one for one in run.told() if "eval_loss" in one][-1])
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    (checkpoints,) = {
        len([*(folder / f"run{n}" / "checkpoints").iterdir()]) for n in (0, len(stops))
    }
    assert checkpoints == 2  # the last one alone: its index and its values


def check_killed(
    folder: Path, style: str, steps: int, kills: Sequence[int], command: Sequence[str] = COMMAND
) -> None:
    """Killed after so many steps each, it ends with the same loss as one that was left alone."""
    order = [
        *(sys.executable, "-m", *command, "train", "--optimizer", "sgd", "--deterministic"),
        *("--cap", "100", "--dim", "4", "--batch-size", "64", "--steps", str(steps)),
        *("--save-every", "20", "--eval-samples", "500", "--style", style),
    ]

    def started(name: str) -> zygote.Popen:
        log = open(folder / f"{name}.log", "ab")  # noqa: SIM115
        return zygote.Popen([*order, "--run", str(folder / name)], cwd=ROOT, stdout=log, stderr=log)

    def step(name: str) -> int:
        file = folder / name / "state.json"
        return json.loads(file.read_text())["step"] if file.is_file() else 0

    assert started("whole").wait() == 0, (folder / "whole.log").read_text()[-2000:]
    rng = random.Random(3)
    for least in kills:
        process = started("cut")
        while process.poll() is None and step("cut") < least:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        assert process.poll() is None, (folder / "cut.log").read_text()[-2000:]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert step("cut") % 20 == 0
    assert started("cut").wait() == 0
    told = {
        name: [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
        for name in ("whole", "cut")
    }
    assert [one["step"] for one in told["cut"]] == [one["step"] for one in told["whole"]]
    assert told["cut"][-1] == told["whole"][-1]  # the held-out loss and AUC, to the bit
    assert os.listdir(folder / "cut" / "logs")
    export = ["export", str(folder / "model"), "--run", str(folder / "cut")]
    zygote.run([sys.executable, "-m", *command, *export], check=True, cwd=ROOT)


def test_killed_it_ends_with_the_same_loss(tmp_path: Path) -> None:
    """Once; three times, in both styles and of all features in tests/soak/long_training.py."""
    check_killed(tmp_path, "graph", 500, [20])


def test_replicas_train_as_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command on two devices, whose model the other commands read; and here on one."""
    options = {"cap": 100, "dim": 4, "batch-size": 33, "steps": 6, "eval-samples": 200}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    folder = tmp_path / "two"
    order = ["train", "--run", str(folder), "--strategy", "mirrored", "--do-fusion", "v2", *words]
    done = zygote.run(
        [sys.executable, "-m", *COMMAND, *order, "--optimizer", "sgd"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "done at step 6; held-out AUC 0." in done.stdout
    monkeypatch.setattr("modelzoo.training.commands.sources", few)
    one = replace(SMALL, batch_size=33, steps=6, optimizer="sgd")
    source, held_out = few(one)
    run = Run(tmp_path / "one", "dlrm", one)
    loop.train(run, build(MODELS["dlrm"], one, source), source, held_out, loop.Silent())
    for other, own in zip(Run.opened(folder).told(), run.told(), strict=True):
        for name in {*own} - {"samples_per_second", "waiting"}:
            assert other[name] == pytest.approx(own[name], rel=1e-4)

    def told(*words: str) -> str:
        ended = CliRunner().invoke(commands(MODELS["dlrm"]), words)
        assert ended.exit_code == 0, ended.output
        return ended.output.splitlines()[-1]

    last = [*run.told()][-1]
    line = f"AUC {last['eval_auc']:.6f}, loss {last['eval_loss']:.6f}"
    assert told("eval", "--run", str(tmp_path / "one")) == line
    path = tmp_path / "model"
    signatures = "signatures serving_default, parse_example and embeddings"
    assert told("export", str(path), "--run", str(folder)) == f"{path}: {signatures}"
    found = {*tf.saved_model.load(str(path)).signatures}
    assert found == {"serving_default", "parse_example", "embeddings"}


class Worse(Steps):
    """Never learns anything."""

    def start(self, features: Any, labels: Any) -> Any:
        return lambda: (0.7, self.scores(features, labels))

    def scores(self, features: Any, labels: Any) -> Scored:
        return Scored(np.asarray(labels)[:, 0], np.zeros(len(labels), np.float32))

    def save(self, prefix: Path) -> None:
        Path(f"{prefix}.data").touch()

    def restore(self, prefix: Path) -> None:
        assert Path(f"{prefix}.data").is_file()


def test_steps_that_overlap_are_done_where_something_is_kept(tmp_path: Path) -> None:
    class Late(Worse):
        at_once = 3
        started = ended = most = 0

        def start(self, features: Any, labels: Any) -> Any:
            self.started += 1
            self.most = max(self.most, self.started - self.ended)

            def wait(number: int = self.started) -> Any:
                assert number == self.ended + 1
                self.ended = number
                return 0.7, super(Late, self).scores(features, labels)

            return wait

        def scores(self, features: Any, labels: Any) -> Scored:
            assert self.ended == self.started
            return super().scores(features, labels)

        def save(self, prefix: Path) -> None:
            assert self.ended == self.started
            super().save(prefix)

    options = replace(SMALL, steps=30, eval_every=7, save_every=8)
    source, held_out = few(options)
    steps, run = Late(), Run(tmp_path / "run", "none", options)
    assert loop.train(run, steps, source, held_out, loop.Silent()).step == 30
    assert (steps.ended, steps.most) == (30, 3)


#: The options of trainings in several processes of this machine.
SERVERS = ("--strategy", "ps", "--do-fusion", "v2")
WORKERS = ("--strategy", "multiworker", "--sharded")


def order_of_processes(folder: Path, steps: int, strategy: Sequence[str]) -> list[str]:
    """The command that trains in several processes."""
    return [
        *(sys.executable, "-m", "modelzoo.dlrm", "train", *strategy),
        *("--run", str(folder), "--cap", "100", "--dim", "4", "--batch-size", "32"),
        *("--steps", str(steps), "--save-every", "10", "--eval-samples", "200"),
        *("--eval-every", "0"),
    ]


def check_trained_by_processes(folder: Path, steps: int, strategy: Sequence[str]) -> None:
    """Trains to a step; one device evaluates what was trained."""
    order = order_of_processes(folder, steps, strategy)
    done = zygote.run(order, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"done at step {steps}; held-out AUC 0." in done.stdout
    run = Run.opened(folder)
    last = [*run.told()][-1]
    line = f"AUC {last['eval_auc']:.6f}, loss {last['eval_loss']:.6f}"
    ended = CliRunner().invoke(commands(MODELS["dlrm"]), ["eval", "--run", str(folder)])
    assert ended.output.splitlines()[-1] == line


def test_workers_train_tables_of_servers(tmp_path: Path) -> None:
    """Killed, it goes on: in tests/soak/long_training.py."""
    check_trained_by_processes(tmp_path / "run", 20, SERVERS)


def test_early_stop(tmp_path: Path) -> None:
    options = replace(SMALL, steps=100, eval_every=3, patience=2)
    source, held_out = few(options)
    run = Run(tmp_path / "run", "none", options)
    state = loop.train(run, Worse(), source, held_out, loop.Silent())
    assert (state.step, state.best, state.worse) == (9, 0.5, 2)
    again = loop.train(run, Worse(), source, held_out, loop.Silent())
    assert again == state
    assert [one["step"] for one in run.told() if "eval_auc" in one] == [3, 6, 9]
    longer = Run(tmp_path / "run", "none", replace(options, patience=4))
    assert loop.train(longer, Worse(), source, held_out, loop.Silent()).step == 15


def test_a_loss_that_is_no_number_ends_it(tmp_path: Path) -> None:
    options = replace(SMALL, optimizer="sgd", rate=1e20, style="graph")
    source, held_out = few(options)
    run = Run(tmp_path / "run", "dlrm", options)
    with pytest.raises(RunError, match=r"the loss of step \d+ is .*a smaller rate than 1e\+20"):
        loop.train(run, build(MODELS["dlrm"], options, source), source, held_out, loop.Silent())


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "none", SMALL)
    run.folder.mkdir()
    (run.folder / "options.json.partial").touch()
    run.begin()
    left = run.folder / "checkpoints" / "step-00000005_temp"
    left.mkdir(parents=True)
    (left / "part").touch()
    run.save(Worse(), State(step=10))
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-00000010.data"}
    (run.folder / "state.json").write_text("[")
    with pytest.raises(RunError, match=r"state.json: not what `train` wrote"):
        run.state()


def test_only_one_process_trains_in_a_folder_and_only_trainings_are_forgotten(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run", "none", SMALL)
    with (
        run.locked(),
        pytest.raises(RunError, match="another process trains here"),
        run.locked(),
    ):
        pass
    with run.locked():
        run.begin()
        run.save(Worse(), State(step=10))
        run.forget()
        assert run.begin() == State()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    with pytest.raises(RunError, match="holds no training"):
        Run(tmp_path / "theirs", "none", SMALL).forget()
    assert (tmp_path / "theirs" / "file").is_file()


def test_folders_with_something_else_are_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "dlrm", SMALL)
    assert run.begin() == State()
    Run(tmp_path / "run", "dlrm", replace(SMALL, steps=99)).begin()
    with pytest.raises(RunError, match="a training with batch_size=32"):
        Run(tmp_path / "run", "dlrm", replace(SMALL, batch_size=64)).begin()
    with pytest.raises(RunError, match="a training with model=dlrm"):
        Run(tmp_path / "run", "deepfm", SMALL).begin()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    with pytest.raises(RunError, match="is not empty and holds no training"):
        Run(tmp_path / "theirs", "dlrm", SMALL).begin()
    with pytest.raises(RunError, match="no training"):
        Run.opened(tmp_path / "none")
    (tmp_path / "run" / "options.json").write_text("{}")
    with pytest.raises(RunError, match="not what `train` wrote"):
        Run.opened(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"do_fusion": "v3"}, "do_fusion must be one of None, v1, v2, got 'v3'"),
        ({"strategy": "mirrored", "style": "graph"}, "strategy 'mirrored' is for style 'keras'"),
        ({"strategy": "ps", "deterministic": True}, "strategy 'ps' cannot be deterministic"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"patience": -1}, "patience must not be negative, got -1"),
        ({"hidden": "64,x"}, "hidden must be numbers by commas, got '64,x'"),
    ],
)
def test_options_say_what_is_wrong(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**wrong)


def test_measurements_take_turns() -> None:
    options = replace(SMALL, style="graph")
    source, _ = few(options)
    found = measure(MODELS["dlrm"], options, source, rounds=2, steps_per_round=1)
    assert [*found["variants"]] == ["stock", "v1", "v2", "enable"]
    assert found["variants"]["stock"]["speedup"] == [1.0, 1.0, 1.0]
    assert all(one["milliseconds"] > 0 for one in found["variants"].values())


@pytest.mark.parametrize("name", MODELS)
def test_the_base_of_keras_steps_is_its_own_layers(name: str) -> None:
    source, _ = few(SMALL)
    found = measure(MODELS[name], SMALL, source, rounds=1, steps_per_round=1)
    assert [*found["variants"]] == ["layers", "layers-enable", "stock", "v1", "v2", "enable"]
    assert found["variants"]["layers"]["speedup"] == [1.0, 1.0, 1.0]
    losses = found["losses"]
    assert losses["layers"] == losses["layers-enable"]
    # With the first steps the row of missing ids is no zeros any more.
    assert losses["layers"][0] == pytest.approx(losses["stock"][0], rel=1e-6)
    assert losses["layers"][-1] != losses["stock"][-1]


def test_variants_are_chosen_by_name() -> None:
    source, _ = few(SMALL)
    names = ["layers-enable", "layers"]
    found = measure(MODELS["dlrm"], SMALL, source, 1, 1, names)
    assert [*found["variants"]] == ["layers", "layers-enable"]
    graph = replace(SMALL, style="graph")
    with pytest.raises(
        RunError, match="variants must be some of stock, v1, v2, enable, got layers"
    ):
        measure(MODELS["dlrm"], graph, source, 1, 1, ["layers", "v1"])


def test_a_variant_with_other_losses_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = few(SMALL)
    monkeypatch.setattr("modelzoo.layers._behind_zeros", lambda values: values)
    with pytest.raises(RunError, match=r"loss of step 1 is .* with stock, .* with layers"):
        measure(MODELS["dlrm"], SMALL, source, 1, 1, ["layers", "stock"])


def test_stock_layers_take_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.name for one in variants("keras", ["C1"])] == ["stock", "v1", "v2", "enable"]
    source, _ = few(SMALL)
    source.lists = ("C1",)
    with pytest.raises(ValueError, match="one id per row; there are lists in C1"):
        build(MODELS["dlrm"], SMALL, source, is_stock=True)


def test_the_commands_tell_in_a_line_what_is_wrong(tmp_path: Path) -> None:
    group = commands(MODELS["dlrm"])

    def told(*words: str) -> str:
        done = CliRunner().invoke(group, words)
        assert done.exit_code == 1, done.output
        return done.output.splitlines()[-1]

    folder = str(tmp_path / "run")
    assert "no such file or folder" in told("train", "--run", folder, "--data", f"{tmp_path}/none")
    (tmp_path / "bad.txt").write_text("nothing\n")
    line = told("train", "--run", folder, "--data", f"{tmp_path}/bad.txt", "--cap", "9")
    assert line.startswith(f"Error: {tmp_path}/bad.txt: no sample in 1 lines")
    assert "no training; `train` makes one" in told("eval", "--run", str(tmp_path / "none"))
    Run(tmp_path / "run2", "dlrm", SMALL).begin()
    assert "no checkpoint yet" in told("export", f"{tmp_path}/x", "--run", str(tmp_path / "run2"))
    Run(tmp_path / "run3", "deepfm", SMALL).begin()
    line = told("eval", "--run", str(tmp_path / "run3"))
    assert "a training of deepfm, not of dlrm" in line
    assert "already exists" in told("export", str(tmp_path), "--run", str(tmp_path / "run2"))
