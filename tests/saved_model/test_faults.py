"""A rewrite that is hindered, killed or given something hostile leaves nothing or a whole model."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from fusion.cli import main
from fusion.saved_model import ModelError, fuse_saved_model
from fusion.saved_model.model.staging import staged_files, write_file
from tests.saved_model.forked import Run, Tool
from tests.saved_model.frozen_graphs import v1_graph, write
from tests.saved_model.test_rewrite import hashes
from tests.soak.hostile import judged, kill_rewrites, rewrite_mutants
from tests.tiers import examples

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
"""Makes a process that may mount, and whose mounts nobody else sees; mostly without being root."""


def refused(run: Run) -> str:
    """Returns the one line that a refused command says."""
    assert run.status == 2, run
    (line,) = run.lines
    assert line.startswith("fusion: error: ")
    return line


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [("tf2", range(7, 13)), ("v1_ref", range(46, 49)), ("example", range(72, 75))],
)
def test_damaged_models_are_refused_or_rewritten_as_verified(
    models: Path, tool: Tool, kind: str, seeds: range
):
    # A sample of those that `python -m tests.soak.hostile` runs.
    counts, wrong = rewrite_mutants(tool, models / kind, seeds)
    assert wrong == []
    assert counts.total() == len(seeds)


def test_killed_rewrites_leave_nothing_or_all(models: Path, tool: Tool, tmp_path: Path):
    assert kill_rewrites(tool, models / "tf2", tmp_path, examples(12), "--no-verify") == []


def test_what_killed_runs_left_is_removed_by_the_next_one(models: Path, tmp_path: Path):
    for name in (".fusion-old.partial", ".fusion-new.partial", ".fusion-empty.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / ".fusion-old.partial" / "model").mkdir()
    (tmp_path / ".fusion-old.partial" / "model" / "saved_model.pb").write_text("half")
    (tmp_path / ".fusion-old.partial" / "lock").touch()
    remaining = {"theirs", ".fusion-mine", ".fusion-new.partial", ".fusion-link.partial"}
    (tmp_path / "theirs").mkdir()
    (tmp_path / ".fusion-mine").mkdir()
    (tmp_path / ".fusion-link.partial").symlink_to(tmp_path / "theirs")
    with open(tmp_path / ".fusion-new.partial" / "lock", "w") as lock:
        # As a run holds it that still lives.
        fcntl.flock(lock, fcntl.LOCK_EX)
        fuse_saved_model(models / "tf2", tmp_path / "dst", verify=False)
    assert {*os.listdir(tmp_path)} == {"dst", *remaining}


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path):
    def build() -> None:
        with staged_files(tmp_path / "record", tmp_path / "file") as (record, file):
            write_file(record, b"ours")
            write_file(file, b"ours")
            (tmp_path / "record").write_text("theirs")

    with pytest.raises(ModelError, match="cannot be written: file exists"):
        build()
    assert os.listdir(tmp_path) == ["record"]
    assert (tmp_path / "record").read_text() == "theirs"


def test_files_appear_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    with staged_files(tmp_path / "file") as (file,):
        write_file(file, b"content")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_each_call_that_fails_leaves_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first, the second, ... system call fails as on a full disk, until none is left."""
    fuse_saved_model(models / "tf2", tmp_path / "expected", verify=False)
    expected = hashes(tmp_path / "expected")
    calls = failures = 0

    def failing(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == failures + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*arguments, **named)

        return call

    for name in ("mkdir", "fsync", "rename", "copy_file_range"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    refusals = 0
    while calls >= failures:
        calls = 0
        dst = tmp_path / "dst"
        message = ""
        try:
            fuse_saved_model(models / "tf2", dst, verify=False)
        except ModelError as error:
            message = str(error)
        if message:
            assert "cannot be written: no space left on device" in message
            assert os.listdir(tmp_path) == ["expected"]
            refusals += 1
        else:
            # Where the call is not needed, or does without: the file is copied in another way.
            assert hashes(dst) == expected
            shutil.rmtree(dst)
        failures += 1
    assert refusals > 8


def test_a_file_that_does_not_fit_leaves_nothing(models: Path, tool: Tool, tmp_path: Path):
    for limit in (2_000, 10_000):
        run = tool("rewrite", models / "tf2", tmp_path / "dst", largest_file=limit)
        assert "file too large" in refused(run).lower()
        assert os.listdir(tmp_path) == []
    assert tool("rewrite", "--no-verify", models / "tf2", tmp_path / "dst").status == 0


def test_a_disk_that_is_full_or_read_only(models: Path, tmp_path: Path):
    probe = subprocess.run([*_NAMESPACE, "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.decode().strip()}")
    disks = {
        "size=16k": "no space left on device",
        # Enough for the files, and not for the outcomes, nor for messages about them.
        "size=64k": "no space left on device",
        "size=88k": "no space left on device",
        "ro": "read-only file system",
    }
    mounts = []
    for number, options in enumerate(disks):
        (tmp_path / f"{number}").mkdir()
        mounts.append(f"mount -t tmpfs -o {options} none {shlex.quote(f'{tmp_path}/{number}')}")
    tool = Tool(*_NAMESPACE, "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh")
    try:
        for number, message in enumerate(disks.values()):
            for name in ("dst", "again"):
                run = tool("rewrite", models / "v1_ref", tmp_path / f"{number}" / name)
                assert message in refused(run).lower()
    finally:
        tool.close()


@pytest.mark.parametrize("folder", ["/proc", "/proc/self/fd", "/sys"])
def test_folders_that_take_no_files(models: Path, tool: Tool, folder: str):
    line = refused(tool("rewrite", "--no-verify", models / "tf2", f"{folder}/dst"))
    assert f"{folder}: cannot be written: " in line


@pytest.mark.parametrize("name", ["../../escaped", "/escaped", "a/../../../escaped", "..", "a\nb"])
def test_assets_do_not_lead_out_of_the_destination(
    models: Path, tool: Tool, tmp_path: Path, name: str
):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    shutil.copytree(models / "v1_ref", inner / "src")
    file = inner / "src" / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for asset in proto.meta_graphs[0].asset_file_def:
        asset.filename = name
    file.write_bytes(proto.SerializeToString())
    before = hashes(inner / "src")
    run = tool("rewrite", "--no-verify", inner / "src", inner / "dst")
    assert judged(run, inner / "src", inner / "dst") == "rewritten"
    assert {*tmp_path.rglob("*")} == {
        inner.parent,
        inner,
        *(inner / side for side in ("src", "dst")),
        *(inner / "src" / path.relative_to(models / "v1_ref") for path in _below(models)),
        *(inner / "dst" / path.relative_to(models / "v1_ref") for path in _below(models)),
        inner / "dst" / "fusion.json",
    }
    assert hashes(inner / "src") == before


def _below(models: Path) -> list[Path]:
    return [*(models / "v1_ref").rglob("*")]


def test_links_and_strange_names_in_a_model(models: Path, tmp_path: Path):
    src, outside = tmp_path / "src", tmp_path / "outside"
    shutil.copytree(models / "tf2", src)
    outside.mkdir()
    (outside / "words").write_text("red\n")
    (src / "assets" / "link").symlink_to(outside / "words")
    (src / "assets" / "folder").symlink_to(outside)
    (src / "assets" / "new\nline \x1b[1m").write_text("x")
    (src / "assets" / os.fsdecode(b"\xff")).write_text("y")
    fuse_saved_model(src, tmp_path / "dst", verify=False)
    for name in ("link", "folder/words"):
        copy = tmp_path / "dst" / "assets" / name
        assert copy.read_text() == "red\n"
        assert not copy.is_symlink()
        copy.write_text("ours")
    assert (outside / "words").read_text() == "red\n"
    before = {file for file in hashes(src) if file.parts[0] == "assets"}
    assert before <= hashes(tmp_path / "dst").keys()


@pytest.mark.parametrize("name", ["saved_model.pb", "fingerprint.pb", "assets/x", "fusion.json"])
def test_pipes_and_folders_in_the_place_of_files(
    models: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    src = tmp_path / "src"
    shutil.copytree(models / "tf2", src)
    (src / name).unlink(missing_ok=True)
    os.mkfifo(src / name)
    assert main(["rewrite", "--no-verify", str(src), str(tmp_path / "dst")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert os.listdir(tmp_path) == ["src"]


def test_damaged_frozen_graphs(tool: Tool, tmp_path: Path):
    content = write(v1_graph(), tmp_path / "src.pb").read_bytes()
    src = tmp_path / "src.pb"
    for index in range(20, len(content), len(content) // 8):
        src.write_bytes(content[:index] + bytes([content[index] ^ 0x55]) + content[index + 1 :])
        run = tool("rewrite", "--no-verify", src, tmp_path / "dst.pb")
        if run.status:
            refused(run)
            assert os.listdir(tmp_path) == ["src.pb"]
        else:
            (tmp_path / "dst.pb").unlink()
            (tmp_path / "dst.pb.fusion.json").unlink()
