from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusion.saved_model import ModelError
from fusion.saved_model.model.source import MODEL_FILE, model_files, read_saved_model


def test_reads_a_model(models: Path):
    source = read_saved_model(models / "tf2")
    assert len(source.meta_graphs) == 1
    assert source.content == (models / "tf2" / MODEL_FILE).read_bytes()


def test_a_relative_path_is_made_absolute(models: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(models)
    assert read_saved_model("tf2").path == models / "tf2"


@pytest.mark.parametrize("length", [0, 2, 3, 500, -1])
def test_a_truncated_file_is_refused(models: Path, tmp_path: Path, length: int):
    (tmp_path / MODEL_FILE).write_bytes((models / "tf2" / MODEL_FILE).read_bytes()[:length])
    with pytest.raises(ModelError, match="truncated or damaged") as caught:
        read_saved_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_no_saved_model_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match="no such file"):
        read_saved_model(tmp_path / "absent")
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(ModelError, match="not a directory"):
        read_saved_model(file)
    with pytest.raises(ModelError, match=r"holds no saved_model\.pb"):
        read_saved_model(tmp_path)
    (tmp_path / "saved_model.pbtxt").write_text("")
    with pytest.raises(ModelError, match=r"holds saved_model\.pbtxt"):
        read_saved_model(tmp_path)
    # A pipe, on which a plain open would wait for ever.
    os.mkfifo(tmp_path / MODEL_FILE)
    with pytest.raises(ModelError, match="not a regular file"):
        read_saved_model(tmp_path)


def test_an_unreadable_file_is_refused(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    # Not chmod: the tests may run as root, whom no mode keeps from reading.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ModelError, match=r"saved_model\.pb: cannot be read: permission denied"):
        read_saved_model(models / "tf2")


def test_files_and_folders_are_listed_through_links(tmp_path: Path):
    pool = tmp_path / "pool"
    pool.mkdir()
    (pool / "blob").write_text("b")
    model = tmp_path / "model"
    (model / "empty").mkdir(parents=True)
    (model / "link").symlink_to(pool / "blob")
    (model / "folder").symlink_to(pool)
    found = model_files(model)
    assert found.folders == (Path("empty"), Path("folder"))
    assert found.files == (Path("folder/blob"), Path("link"))


def test_circles_and_devices_are_refused(tmp_path: Path):
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(ModelError, match="a link to a folder that contains it"):
        model_files(tmp_path)
    (tmp_path / "loop").unlink()
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    with pytest.raises(ModelError, match="neither a file nor a folder"):
        model_files(tmp_path)
