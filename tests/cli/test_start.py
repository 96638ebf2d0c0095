"""The command as a process: TensorFlow is imported when all arguments are right, and not before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.interrupted import command_in
from tests.zygote import ROOT

WITHOUT_TENSORFLOW = "raise ImportError('TensorFlow is imported')"

NO_FILE = "no such file or directory"


@pytest.fixture(params=["script", "fusion", "fusion.cli"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The first words of a command line: the script, or Python with a module."""
    if request.param == "script":
        return command_in(tmp_path)
    return [sys.executable, "-m", request.param]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command with a TensorFlow that cannot be imported."""
    stand_in = folder / "packages"
    stand_in.mkdir()
    (stand_in / "tensorflow.py").write_text(WITHOUT_TENSORFLOW)
    environment = {**os.environ, "PYTHONPATH": f"{stand_in}{os.pathsep}{ROOT}"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rewrite", "--help"]])
def test_help_needs_no_tensorflow(start: list[str], arguments: list[str], tmp_path: Path) -> None:
    done = run([*start, *arguments], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fusion" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rewriet a b", "No such command 'rewriet'. Did you mean 'rewrite'?; see `fusion --help`"),
        ("inspect no", f"no: {NO_FILE}"),
        ("inspect no --json --column c", "--json prints all columns; leave --column out"),
        ("inspect folder", "folder: not a SavedModel: it holds no saved_model.pb"),
        ("inspect gs://bucket/model", "gs://bucket/model: models are read from local folders"),
        ("rewrite no new", f"no: {NO_FILE}"),
        ("rewrite model folder", "folder: already exists; choose a new path or remove it first"),
        ("rewrite model no/new", "its parent folder"),
        ("rewrite model new --table-dtype a", "--table-dtype: 'a' is not NAME=DTYPE"),
        ("split model folder", "folder: already exists; choose a new path or remove it first"),
        ("verify model no", f"no: {NO_FILE}"),
        ("bench model no", f"no: {NO_FILE}"),
        ("bench model --report no/file", "the folder of no/file does not exist"),
        ("warm no", f"no: {NO_FILE}"),
        ("build-ops no -o new.so", f"no: {NO_FILE}"),
        ("plan no --replicas 2", f"no: {NO_FILE}"),
        ("plan --tables no --replicas 2", "no: No such file or directory"),
        ("plan --replicas 2", "give a MODEL or --tables"),
        ("tables push no rocksdb:new", f"no: {NO_FILE}"),
    ],
)
def test_wrong_arguments_are_told_before_tensorflow_is_imported(
    arguments: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "saved_model.pb").touch()
    done = run([sys.executable, "-m", "fusion", *arguments.split()], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fusion: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["inspect model", "doctor", "warm", "verify model model"])
def test_right_arguments_import_it(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "saved_model.pb").touch()
    done = run([sys.executable, "-m", "fusion", *arguments.split()], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fusion: error: TensorFlow is imported; see `fusion doctor`\n"


def test_other_programs_register_the_ops_when_they_import_fusion(tmp_path: Path) -> None:
    for program in (["-c", "import fusion"], ["-m", "fusion.saved_model.verify.worker"]):
        done = run([sys.executable, *program], tmp_path)
        shutil.rmtree(tmp_path / "packages")
        assert done.returncode == 1
        assert "ImportError: TensorFlow is imported" in done.stderr
