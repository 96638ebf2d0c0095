"""Ids and configurations that the example server reads from files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.serving.store import Store, open_store, read_config, read_ids

ROOT = Path(__file__).parents[2]


def test_ids_in_files(tmp_path: Path) -> None:
    text, arrays = tmp_path / "ids.txt", tmp_path / "ids.npz"
    text.write_text("items 1 2 -3\n\nusers 7\nitems 4\n")
    found = read_ids(text)
    assert {table: ids.tolist() for table, ids in found.items()} == {
        "items": [1, 2, -3, 4],
        "users": [7],
    }
    np.savez(arrays, items=np.arange(3))
    assert read_ids(arrays)["items"].tolist() == [0, 1, 2]
    text.write_text("items 1\nusers x\n")
    with pytest.raises(ValueError, match=r"ids.txt:2: invalid literal"):
        read_ids(text)
    arrays.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"ids.npz: "):
        read_ids(arrays)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"items": np.arange(3), "word": np.arange(3)}, "no table 'word'"),
        ({"items": np.ones(3)}, "keys must be int64, got float64"),
    ],
)
def test_ids_that_cannot_be(
    splits: Path, tmp_path: Path, content: dict[str, Any], text: str
) -> None:
    np.savez(tmp_path / "ids.npz", **content)
    store = open_store(splits / "shop.split")
    with pytest.raises(ValueError, match=f"ids.npz: {text}"):
        store.warm(tmp_path / "ids.npz")
    store.tables.close()


def test_configurations(tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    table = {"name": "items", "dimension": 8, "folder": "tables/items", "default": 0.5}
    file.write_text(json.dumps({"tables": [table], "rocksdb": {"path": "db", "read_only": True}}))
    config = read_config(file)
    assert config.tables[0].default == 0.5
    assert config.rocksdb is not None
    assert config.rocksdb.read_only
    assert config.redis is None
    model = {
        "sparse_files": ["tables/items"],
        "embedding_table_names": ["items"],
        "embedding_vecsize_per_table": [8],
        "default_value_for_each_table": [0.0],
    }
    file.write_text(json.dumps({"supportlonglong": True, "models": [model]}))
    assert [one.name for one in read_config(file).tables] == ["items"]


def test_the_configuration_of_the_readme(tmp_path: Path) -> None:
    page = (ROOT / "examples" / "serving" / "README.md").read_text()
    (content,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "store.json").write_text(content)
    config = read_config(tmp_path / "store.json")
    assert config.rocksdb is not None
    assert config.redis is not None
    assert [one.name for one in config.tables] == ["params"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is no JSON"),
        ("[]", "must be an object"),
        ('{"tables": []}', "tables and tiers must not be empty"),
        ('{"tables": {}}', "tables must be a list"),
        ('{"tables": [], "rocks": {}}', "'rocks' is not known"),
        ('{"tables": [1]}', r"tables\[0\] must be an object, got 1"),
        ('{"tables": [{"name": "a"}]}', r"tables\[0\]: .*dimension"),
        ('{"tables": [{"name": "a", "dimension": 0}]}', r"tables\[0\]: .*positive"),
        ('{"tables": [{"name": "a", "size": 1}]}', r"tables\[0\]: 'size' is not known"),
        ('{"tables": [], "redis": {"address": "x"}}', r"redis: address must be host:port"),
    ],
)
def test_configurations_that_cannot_be(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(ValueError, match=text):
        Store(read_config(tmp_path / "store.json"))
