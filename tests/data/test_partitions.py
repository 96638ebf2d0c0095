"""Folders of partitions: `day=3/shop=a/part.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from fusion.data import DataError, ParquetLoader, cardinalities

NULL = "__HIVE_DEFAULT_PARTITION__"


def write(folder: Path, partitions: Mapping[str, Any]) -> None:
    """Writes a file with these ids into each folder."""
    for name, ids in partitions.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": ids}), folder / name / "part.parquet", row_group_size=1)


def load(paths: Any, names: list[str], **arguments: Any) -> ParquetLoader:
    arguments = {"shuffle": False, "cat_names": names, **arguments}
    return ParquetLoader(paths, 2, **arguments)


def rows(loader: tf.data.Dataset) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for batch in loader:
        columns = [column.numpy()[:, 0].tolist() for column in batch.values()]
        found += zip(*columns, strict=True)
    return found


DAYS = {"day=1/shop=a": [1, 2], "day=1/shop=b%20c": [3], "day=22/shop=a": [4]}


def test_keys_are_columns(tmp_path: Path) -> None:
    write(tmp_path, DAYS)
    assert rows(load(tmp_path, ["id"])) == [(1,), (2,), (3,), (4,)]
    loader = load(tmp_path, ["id", "day", "shop"])
    expected = [(1, 1, b"a"), (2, 1, b"a"), (3, 1, b"b c"), (4, 22, b"a")]
    assert rows(loader) == expected
    assert [column.dtype for column in loader.columns] == [tf.int64, tf.int32, tf.string]
    table = ds.dataset(tmp_path, partitioning="hive").to_table()
    by_arrow = sorted(
        zip(*(table[name].to_pylist() for name in ("id", "day", "shop")), strict=True)
    )
    assert [(a, b, c.encode()) for a, b, c in by_arrow] == expected
    assert cardinalities(tmp_path, ["id", "day"]) == {"id": 5, "day": 23}
    with pytest.raises(DataError, match="column shop holds no integers"):
        cardinalities(tmp_path, ["shop"])


def test_keys_alone_and_shuffled(tmp_path: Path) -> None:
    write(tmp_path, DAYS)
    assert rows(load(tmp_path, ["day"])) == [(1,), (1,), (1,), (22,)]
    shuffled = rows(load(tmp_path, ["id", "day"], shuffle=True, seed=1, parts_per_chunk=9))
    assert sorted(shuffled) == [(1, 1), (2, 1), (3, 1), (4, 22)]


@pytest.mark.parametrize("path", ["day=22", "day=22/shop=a/part.parquet", "day=2*/*/*.parquet"])
def test_keys_of_one_partition_of_a_file_and_of_a_glob(tmp_path: Path, path: str) -> None:
    write(tmp_path, DAYS)
    assert rows(load(str(tmp_path / path), ["day", "shop", "id"])) == [(22, b"a", 4)]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (["07", "-3"], tf.int32, [-3, 7]),
        (["5000000000", "1"], tf.int64, [1, 5000000000]),
        (["2026-01-02", "1"], tf.string, [b"1", b"2026-01-02"]),
        (["1.5", "2"], tf.string, [b"1.5", b"2"]),
        (["99999999999999999999"], tf.string, [b"99999999999999999999"]),
    ],
)
def test_dtypes(tmp_path: Path, values: list[str], dtype: tf.DType, expected: Any) -> None:
    write(tmp_path, {f"k={value}": [0] for value in values})
    loader = load(tmp_path, ["k"])
    assert loader.columns[0].dtype == dtype
    assert sorted(one for (one,) in rows(loader)) == expected
    as_words = load(tmp_path, ["k"], dtypes={"k": tf.string})
    assert sorted(one for (one,) in rows(as_words)) == sorted(map(str.encode, values))


def test_keys_of_other_roles(tmp_path: Path) -> None:
    write(tmp_path, {"k=1/w=x": [5], "k=2/w=y": [6]})
    loader = load(tmp_path, [], cont_names=["k"])
    assert rows(loader) == [(1.0,), (2.0,)]
    with pytest.raises(DataError, match="column w has string, not numbers"):
        load(tmp_path, [], label_names=["w"])


def test_values_that_are_null(tmp_path: Path) -> None:
    write(tmp_path, {"k=4": [1], f"k={NULL}": [2]})
    assert sorted(rows(load(tmp_path, ["id", "k"], fill_values={"k": -1}))) == [(1, 4), (2, -1)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{NULL}/part.parquet: column k: 1"):
        rows(load(tmp_path, ["id", "k"]))


def test_a_file_that_has_the_column_itself(tmp_path: Path) -> None:
    write(tmp_path, {"id=1": [7]})
    assert rows(load(tmp_path, ["id"])) == [(7,)]


def test_files_without_the_key(tmp_path: Path) -> None:
    write(tmp_path, {"k=4": [1], ".": [2]})
    assert rows(load(tmp_path, ["id"])) == [(1,), (2,)]
    with pytest.raises(DataError, match=r"/part\.parquet: no column k"):
        load(tmp_path, ["k"])
    loader = load(tmp_path, ["k"], on_error="skip")
    assert rows(loader) == [(4,)]
    assert len(loader.skipped) == 1


def test_other_folders_are_not_walked(tmp_path: Path) -> None:
    write(tmp_path, {"k=4": [1], "backup": [2], "k=4/_temporary": [3], "_k=4": [4], "=4": [5]})
    assert rows(load(tmp_path, ["id"])) == [(1,)]
    write(tmp_path / "other", {"train": [2]})
    with pytest.raises(DataError, match=r"train/part\.parquet is in a folder that is not called K"):
        load(tmp_path / "other", ["id"])


def test_urls(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    write(tmp_path, DAYS)
    try:
        for file in tmp_path.rglob("*.parquet"):
            memory.pipe(f"/bucket/{file.relative_to(tmp_path)}", file.read_bytes())
        expected = [(1, b"a"), (2, b"a"), (3, b"b c"), (4, b"a")]
        assert rows(load("memory://bucket", ["id", "shop"])) == expected
    finally:
        memory.store.clear()
