"""Files that cannot be read as asked: errors that name them, or rows that are left out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from fusion.data import DataError, ParquetLoader
from tests import zygote


def write(path: Path, first: int = 0, rows: int = 10) -> Path:
    """Rows with an `id` and an `x`, in row groups of 5."""
    table = pa.table({"id": np.arange(first, first + rows), "x": np.zeros(rows)})
    pq.write_table(table, path, row_group_size=5)
    return path


def load(paths: Any, **arguments: Any) -> ParquetLoader:
    return ParquetLoader(paths, 4, cat_names=["id"], **{"shuffle": False, **arguments})


def ids(loader: tf.data.Dataset) -> list[int]:
    return [one for batch in loader for one in batch["id"].numpy()[:, 0].tolist()]


def break_data(path: Path) -> None:
    """The first row group is broken, the footer is not."""
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.parquet: there is no such file"):
        load(tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"x\*\.parquet: there is no such file"):
        load(str(tmp_path / "x*.parquet"))
    (tmp_path / "_hidden.parquet").touch()
    with pytest.raises(DataError, match=r"no file in it ends in \.parquet"):
        load(tmp_path)
    with pytest.raises(DataError, match="paths: there is none"):
        load([])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"nothing", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_files_that_are_broken(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"b\.parquet: cannot be read as Parquet"):
        load(tmp_path)
    loader = load(tmp_path, on_error="skip")
    assert ids(loader) == [*range(10)]
    (skipped,) = loader.skipped
    assert skipped.path == str(tmp_path / "b.parquet")
    assert skipped.rows is None
    assert "cannot be read as Parquet" in skipped.reason


def test_a_row_group_that_is_broken(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    break_data(write(tmp_path / "b.parquet", 10))
    write(tmp_path / "c.parquet", 20)
    message = r"b\.parquet: column id cannot be read in row groups 0 to "
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ids(load(tmp_path))
    loader = load(tmp_path, on_error="skip", buffer_size=5)
    assert ids(loader) == [*range(10), *range(15, 30)]
    assert [(one.path, one.rows) for one in loader.skipped] == [(str(tmp_path / "b.parquet"), 5)]
    # Batches are counted among the rows that were read.
    assert ids(loader.resume(0, 3)) == [*range(17, 30)]
    # Replicas must have the same number of batches.
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ids(load(tmp_path, on_error="skip", global_size=2))


def test_other_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: no column id"):
        load(tmp_path)
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: column id has int32, but int64 in .*a\.parq"):
        load(tmp_path)
    loader = load(tmp_path, on_error="skip")
    assert ids(loader) == [*range(10)]
    assert [(one.rows, one.path) for one in loader.skipped] == [(1, str(tmp_path / "b.parquet"))]
    assert ids(load(tmp_path, dtypes={"id": tf.int64})) == [*range(10), 1]


def test_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows=0)
    with pytest.raises(DataError, match=r"a\.parquet: there is no row"):
        load(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"no file can be read: .*a\.parquet"):
        load(tmp_path, on_error="skip")


@pytest.mark.parametrize("how", ["grown", "cut", "written anew", "removed"])
def test_a_file_that_changes(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "a.parquet")
    loader = load(path)
    assert ids(loader) == [*range(10)]
    if how == "grown":
        path.write_bytes(path.read_bytes() + b"more")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif how == "written anew":
        write(path, rows=500)
    else:
        path.unlink()
    message = "there is no such file" if how == "removed" else "has changed while it was read"
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"a\.parquet: {message}"):
        ids(loader)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"buffer_size": 0.1},
        {"parts_per_chunk": 0},
        {"global_size": 2, "global_rank": 2},
        {"global_rank": 1},
        {"seed": -1},
        {"global_size": 2},
        {"on_error": "ignore"},
        {"cat_names": "id"},
        {"cat_names": []},
        {"label_names": ["id"]},
        {"sparse_names": ["x"]},
        {"sparse_max": {"x": 1}},
        {"dtypes": {"x": tf.int64}},
        {"fill_values": {"x": 0}},
    ],
)
def test_wrong_arguments(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write(tmp_path / "a.parquet")
    name = "seed" if wrong == {"global_size": 2} else [*wrong][-1]
    with pytest.raises(ValueError, match=f"{name}|cat_names"):
        ParquetLoader(tmp_path, **{"batch_size": 4, "cat_names": ["id"], **wrong})


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("pyarrow", "fusion.data needs pyarrow: pip install 'tf-embedding-fusion[data]'"),
        ("fsspec", "memory://a: URLs need fsspec"),
    ],
)
def test_packages_that_are_not_installed(missing: str, message: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = sys.modules[{missing + ".core"!r}] = None
import fusion
fusion.data.ParquetLoader("memory://a", 1, cat_names=["id"])
"""
    done = zygote.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode
    assert message in done.stderr
