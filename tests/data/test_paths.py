"""Files by names, globs, folders and URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
import tensorflow as tf

from fusion.data import DataError
from tests.data.test_errors import ids, load, write


def test_names_globs_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, name in enumerate(("b", "a", "c")):
        write(folder / f"{name}.parquet", 10 * number)
    (folder / "_metadata.txt").touch()
    (folder / "sub.parquet").mkdir()
    in_order = [*range(10, 20), *range(10), *range(20, 30)]
    assert ids(load(folder)) == ids(load(str(folder / "?.parquet"))) == in_order
    assert ids(load(f"file://{folder}/[abc].parquet")) == in_order
    assert ids(load([folder / "c.parquet", str(folder / "[b]*")])) == [*range(20, 30), *range(10)]
    write(folder / "[b].parquet", 90)
    assert ids(load(folder / "[b].parquet")) == [*range(90, 100)]


@pytest.fixture
def memory() -> Any:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()


def test_urls(tmp_path: Path, memory: Any) -> None:
    for name, first in (("a", 0), ("b", 10)):
        path = write(tmp_path / f"{name}.parquet", first)
        memory.pipe(f"/bucket/{name}.parquet", path.read_bytes())
    for url in ("memory://bucket", "memory://bucket/*.parquet"):
        loader = load(url)
        assert ids(loader) == ids(loader) == [*range(20)]
    assert ids(load("memory://bucket/b.parquet", storage_options={})) == [*range(10, 20)]
    for url in ("memory://bucket/x.parquet", "memory://bucket/x*"):
        with pytest.raises(DataError, match=r"memory://bucket/x.*: there is no such file"):
            load(url)
    memory.pipe("/bucket/b.parquet", b"nothing")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bucket/b\.parquet: has changed"):
        ids(loader)
    with pytest.raises(DataError, match=r"memory://bucket/b\.parquet: cannot be read as"):
        load("memory://bucket")


def test_files_are_closed(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows=100)
    loader = load(tmp_path, buffer_size=5)
    open_files = Path("/proc/self/fd")
    before = len([*open_files.iterdir()])
    for _ in range(20):
        next(iter(loader))
    assert len([*open_files.iterdir()]) <= before + 2
