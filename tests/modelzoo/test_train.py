"""The command that trains: it goes on where it was, and each model runs in a process of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from modelzoo import train
from tests import zygote
from tests.modelzoo.small import few_features

ROOT = Path(__file__).parents[2]
SMALL = ("--cap=50", "--samples=320", "--eval-samples=100", "--batch-size=32", "--dim=4")


def trained(capsys: pytest.CaptureFixture[str], model: str, *words: str) -> str:
    """The last line of what the command prints."""
    with few_features():
        train.run(train.parser().parse_args([model, *SMALL, "--hidden=8", *words]))
    return capsys.readouterr().out.splitlines()[-1]


def stop_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int) -> None:
    """Stops a training when a method is called for so many times."""
    calls, method = [], getattr(owner, name)

    def stopping(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, stopping)


@pytest.mark.parametrize(
    ("style", "method"),
    [
        # In the second epoch, a step behind the end of the first one.
        ("keras", (keras.callbacks.BackupAndRestore, "on_train_batch_end", 12)),
        ("graph", (keras.utils.Progbar, "update", 12)),
    ],
)
def test_what_was_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    style: str,
    method: tuple[Any, str, int],
) -> None:
    words = (f"--style={style}", "--epochs=2", "--save-every=9")
    wanted = trained(capsys, "dlrm", *words, f"--run={tmp_path / 'whole'}")
    assert wanted.startswith("held-out loss 0.")
    killed = (*words, f"--run={tmp_path / 'killed'}")
    with monkeypatch.context() as patch:
        stop_at(patch, *method)
        with pytest.raises(KeyboardInterrupt):
            trained(capsys, "dlrm", *killed)
    assert trained(capsys, "dlrm", *killed) == wanted
    # What is over is evaluated again, and exported.
    again = trained(capsys, "dlrm", *killed, f"--export={tmp_path / 'model'}")
    assert again == wanted
    assert (tmp_path / "model" / "saved_model.pb").is_file()
    with pytest.raises(ValueError, match=r"a training with dim=4; remove it or name another"):
        trained(capsys, "dlrm", *killed, "--dim=8")


def test_it_ends_after_epochs_without_a_better_auc(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rate=0", "--epochs=9", "--patience=2", f"--run={tmp_path / 'run'}")
    with few_features():
        train.run(train.parser().parse_args(["dlrm", *SMALL, "--hidden=8", *words]))
    assert re.findall(r"^Epoch (\d+)/9$", capsys.readouterr().out, re.MULTILINE) == ["1", "2", "3"]


def test_files_are_trained_of_which_statistics_say_how_many_ids_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(capsys, "dlrm", "--steps=2", f"--run={tmp_path / 'made'}")
    files = (f"--data={tmp_path}/made/train", f"--eval-data={tmp_path}/made/held-out")
    line = trained(capsys, "dlrm", "--steps=2", f"--run={tmp_path / 'run'}", *files)
    assert line.startswith("held-out loss 0.")
    with pytest.raises(ValueError, match="none"):
        trained(capsys, "dlrm", f"--run={tmp_path / 'other'}", f"--data={tmp_path}/none")


def process(*words: str) -> str:
    """What a command prints."""
    done = zygote.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        # As the READMEs of the servers have it, with all features.
        ("modelzoo.train", "wide_deep", "--style=graph"),
        ("tests.modelzoo.command", "deepfm", "--strategy=mirrored", "--embeddings=sharded"),
        ("tests.modelzoo.command", "dlrm", "--do-fusion=v2", "--enable", "--deterministic"),
    ],
    ids=lambda words: words[1],
)
def test_each_model_is_trained_and_exported(tmp_path: Path, words: tuple[str, ...]) -> None:
    folders = (f"--run={tmp_path / 'run'}", f"--export={tmp_path / 'model'}")
    output = process(*words, *SMALL, "--steps=3", *folders)
    assert re.fullmatch(r"held-out loss \d\.\d+, AUC 0\.\d+", output.splitlines()[-1])
    assert (tmp_path / "model" / "saved_model.pb").is_file()


def test_flags_that_do_not_go_together_are_an_error_of_a_line(tmp_path: Path) -> None:
    words = ["wide_deep", "--style=graph", "--strategy=mirrored", f"--run={tmp_path / 'run'}"]
    done = zygote.run(
        [sys.executable, "-m", "modelzoo.train", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: --strategy is for --style keras"
