"""A store that follows a folder of versions, as tests have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fusion.stores.refresh import FolderFollower
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription
from fusion.stores.versioned_files import VersionedFiles
from fusion.stores.versions import write_version
from tests.stores.racing import rows_of

ITEMS, SHOPS = TableDescription("items", 4, -1.0), TableDescription("shops", 2)
KEYS = np.arange(0, 200, 2)

#: Seconds after which no test looks by itself.
NEVER = 1e6


def write(root: Path, number: int, base: int | None = None, keys=KEYS, shops=(0, 1)) -> Path:
    """A version each of whose elements is its number."""
    items = {} if keys is None else {"items": rows_of(number, keys, 4)}
    tables = items if shops is None else {**items, "shops": rows_of(number, shops, 2)}
    return write_version(root, number, tables, base)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "root", 1)
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> Iterator[TableStore]:
    tables = [ITEMS, SHOPS]
    with TableStore(tables, [VersionedFiles(root, tables)], cache_rows=60) as opened:
        yield opened


@pytest.fixture
def follower(store: TableStore, root: Path) -> FolderFollower:
    return store.follow(root, NEVER)


def versions(store: TableStore, keys, table: str = "items") -> list[float]:
    rows = store.lookup(table, keys)
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()
