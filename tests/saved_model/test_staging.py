from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fusion.saved_model import ModelError
from fusion.saved_model.model.copies import copy_file
from fusion.saved_model.model.staging import check_destination, staged_directory, write_file


def test_a_staged_directory_appears_when_complete(tmp_path: Path):
    dst = tmp_path / "dst"
    with staged_directory(dst) as staging:
        write_file(staging / "a" / "b", b"content")
        (staging.parent / "scratch").write_text("not part of it")
        assert not dst.exists()
    assert os.listdir(tmp_path) == ["dst"]
    assert (dst / "a" / "b").read_bytes() == b"content"
    mask = os.umask(0)
    os.umask(mask)
    assert dst.stat().st_mode & 0o777 == 0o777 & ~mask


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_when_the_block_raises(tmp_path: Path, error: type[BaseException]):
    def build() -> None:
        with staged_directory(tmp_path / "dst") as staging:
            write_file(staging / "a", b"")
            raise error

    with pytest.raises(error):
        build()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_a_model_error(tmp_path: Path):
    def build() -> None:
        with staged_directory(tmp_path / "dst"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match="cannot be written: no space left on device"):
        build()
    assert os.listdir(tmp_path) == []


def test_a_destination_that_appears_meanwhile_is_kept(tmp_path: Path):
    dst = tmp_path / "dst"

    def build() -> None:
        with staged_directory(dst):
            dst.mkdir()
            (dst / "theirs").write_text("kept")

    with pytest.raises(ModelError, match="cannot be written"):
        build()
    assert os.listdir(tmp_path) == ["dst"]
    assert (dst / "theirs").read_text() == "kept"


def test_destinations_that_cannot_be(tmp_path: Path):
    src = tmp_path / "src"
    src.mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    for taken in ("src", "dangling"):
        with pytest.raises(ModelError, match="already exists"):
            check_destination(src, tmp_path / taken)
    with pytest.raises(ModelError, match=r"parent folder .* does not exist"):
        check_destination(src, tmp_path / "no" / "dst")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"file/dst: its parent .*/file is no folder"):
        check_destination(src, tmp_path / "file" / "dst")
    (tmp_path / "alias").symlink_to(src)
    for inside in (src / "dst", tmp_path / "alias" / "dst"):
        with pytest.raises(ModelError, match="inside the source"):
            check_destination(src, inside)
    assert check_destination(src, tmp_path / "src2") == tmp_path / "src2"


@pytest.mark.parametrize("kernel", [True, False])
def test_a_copy_has_the_bytes_and_the_mode_and_a_life_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
):
    def unsupported(*_: int) -> int:
        raise OSError(errno.EXDEV, "another file system")

    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", unsupported)
    src, dst = tmp_path / "src", tmp_path / "folder" / "dst"
    src.write_bytes(os.urandom(1 << 20))
    src.chmod(0o640)
    copy_file(src, dst)
    assert dst.read_bytes() == src.read_bytes()
    assert dst.stat().st_mode == src.stat().st_mode
    assert dst.stat().st_ino != src.stat().st_ino


def test_a_source_that_cannot_be_opened_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match="absent: cannot be read"):
        copy_file(tmp_path / "absent", tmp_path / "dst")
