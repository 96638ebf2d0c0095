from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from fusion.cli import main
from fusion.saved_model import ModelError, RewriteOptions, rewrite_saved_model
from fusion.saved_model.model.copies import copy_file, copy_files
from fusion.saved_model.rewriting.options import CopyObserver
from tests.saved_model.forked import Tool

SIZE = 5 << 29  # 2.5 GiB
DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def large(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 2.5 GiB of variables, most of which are a hole in the file."""
    model = tmp_path_factory.mktemp("large") / "model"
    shutil.copytree(models / "tf2", model)
    with open(model / DATA, "r+b") as file:
        file.truncate(SIZE)
        file.seek(SIZE // 2)
        file.write(b"middle")
        file.seek(SIZE - 3)
        file.write(b"end")
    return model


def test_gigabytes_of_variables_are_copied_and_never_loaded(
    large: Path, tool: Tool, tmp_path: Path
):
    run = tool("rewrite", large, tmp_path / "dst")
    assert run.status == 0, run.lines
    assert 0 < run.grown < 256 << 20
    copy = tmp_path / "dst" / DATA
    assert copy.stat().st_size == SIZE
    assert copy.stat().st_blocks <= (large / DATA).stat().st_blocks + 64
    for offset in (0, SIZE // 2 - 4096, SIZE - 4096):
        with open(large / DATA, "rb") as a, open(copy, "rb") as b:
            a.seek(offset)
            b.seek(offset)
            assert a.read(8192) == b.read(8192)


@pytest.mark.parametrize("kernel", [True, False])
def test_progress_is_told(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
):
    def unsupported(*_: int) -> int:
        raise OSError(errno.EXDEV, "another file system")

    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", unsupported)
    counts_seen: list[tuple[int, int]] = []
    rewrite_saved_model(
        large,
        tmp_path / "dst",
        RewriteOptions(verify=False),
        CopyObserver(lambda *counts: counts_seen.append(counts)),
    )
    total = sum(f.stat().st_size for f in (large / "variables").iterdir())
    assert {count for _, count in counts_seen} == {total}
    done = [count for count, _ in counts_seen]
    assert done == sorted(done)
    assert done[-1] == total
    assert len(done) > 3
    with open(tmp_path / "dst" / DATA, "rb") as copy:
        copy.seek(SIZE - 3)
        assert copy.read() == b"end"


def test_a_terminal_shows_the_progress(
    large: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert main(["rewrite", "--no-verify", str(large), str(tmp_path / "quiet")]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's sign for a terminal
    assert main(["rewrite", "--no-verify", str(large), str(tmp_path / "shown")]) == 0
    shown = capsys.readouterr().err
    steps = ("1 of 4: read", "2 of 4: fuse", "3 of 4: write", f"{SIZE / 1e6:,.1f} MB")
    assert [step for step in steps if step not in shown] == []
    assert "verify" not in shown


@pytest.mark.parametrize("kernel", [True, False])
def test_holes_stay_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool):
    if not kernel:
        monkeypatch.delattr(os, "copy_file_range")
        monkeypatch.setattr(os, "copy_file_range", _unsupported, raising=False)
    for name, pieces, size in (
        ("empty", {}, 0),
        ("hole", {}, 1 << 20),
        ("dense", {0: os.urandom(300_000)}, 300_000),
        ("both", {1 << 19: os.urandom(70_000)}, 1 << 20),
    ):
        with open(tmp_path / name, "wb") as file:
            for offset, piece in pieces.items():
                file.seek(offset)
                file.write(piece)
            file.truncate(size)
        copy_file(tmp_path / name, tmp_path / f"{name} copy")
        assert (tmp_path / f"{name} copy").read_bytes() == (tmp_path / name).read_bytes()


def _unsupported(*_: int) -> int:
    raise OSError(errno.ENOSYS, "not implemented")


def test_a_file_system_that_cannot_tell_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def lseek(*_: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "lseek", lseek)
    (tmp_path / "src").write_bytes(os.urandom(100_000))
    copy_file(tmp_path / "src", tmp_path / "dst")
    assert (tmp_path / "dst").read_bytes() == (tmp_path / "src").read_bytes()


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "src").write_bytes(os.urandom(100_000))
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    with pytest.raises(ModelError, match="became shorter"):
        copy_file(tmp_path / "src", tmp_path / "dst")


def test_links_share_the_file_and_the_rest_is_new(models: Path, tmp_path: Path):
    src, plain = tmp_path / "src", tmp_path / "plain"
    shutil.copytree(models / "tf2", src)
    pool = tmp_path / "pool"
    shutil.move(src / DATA, pool)
    (src / DATA).symlink_to(pool)
    assert main(["rewrite", "--no-verify", "--link", str(src), str(tmp_path / "dst")]) == 0
    assert main(["rewrite", "--no-verify", str(src), str(plain)]) == 0
    assert (tmp_path / "dst" / DATA).stat().st_ino == pool.stat().st_ino
    assert not (tmp_path / "dst" / DATA).is_symlink()
    assert (plain / DATA).stat().st_ino != pool.stat().st_ino
    for name in ("saved_model.pb", "fingerprint.pb"):
        assert (tmp_path / "dst" / name).stat().st_ino != (src / name).stat().st_ino
        assert (tmp_path / "dst" / name).read_bytes() == (plain / name).read_bytes()


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "file").write_text("content")
    (tmp_path / "dst").mkdir()
    copy_files(tmp_path, tmp_path / "dst", [Path("file")], link=True)
    assert (tmp_path / "dst" / "file").read_text() == "content"
