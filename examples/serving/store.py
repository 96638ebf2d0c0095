"""The tables of a split model: opened, warmed up and asked whether they answer."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.stores.config import open_tiers
from fusion.stores.redis import RedisOptions
from fusion.stores.rocksdb import RocksDBOptions
from fusion.stores.tier import Tier
from fusion.tables import (
    StoreConfig,
    StoreCounters,
    TableConfig,
    TableStore,
    TierError,
    split_tables,
)

_PathLike = str | os.PathLike[str]


def read_config(path: _PathLike) -> StoreConfig:
    """Returns the configuration in a JSON file: HPS's, or the fields of `StoreConfig`.

    The latter are `tables`, a list of objects with the fields of `TableConfig`, and `rocksdb` and
    `redis`, objects with those of `RocksDBOptions` and `RedisOptions`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON, or a field is missing, not known, or has a wrong value.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must be an object")
    if "models" in content:
        return StoreConfig.from_hps_json(content)
    options: dict[str, Any] = {"rocksdb": RocksDBOptions, "redis": RedisOptions}
    unknown = [name for name in content if name not in ("tables", *options)]
    if unknown or not isinstance(content.get("tables"), list):
        what = f"{unknown[0]!r} is not known" if unknown else "tables must be a list"
        raise ValueError(f"{path}: {what}")
    tables = tuple(
        _made(TableConfig, f"{path}: tables[{k}]", one) for k, one in enumerate(content["tables"])
    )
    databases = {
        name: _made(kind, f"{path}: {name}", content[name])
        for name, kind in options.items()
        if name in content
    }
    return StoreConfig(tables, **databases)


def _made(kind: Any, where: str, content: Any) -> Any:
    """An object of a dataclass."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{where} must be an object, got {content!r}")
    unknown = content.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise ValueError(f"{where}: {min(unknown)!r} is not known")
    try:
        return kind(**content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


class Store:
    """A table store, and its tiers.

    Attributes:
        tables: the table store.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Opens it.

        Raises:
            ImportError: a package is not installed that a tier needs.
            TierError: a tier does not answer, or files are damaged.
        """
        self._tiers: list[Tier] = open_tiers(config)
        try:
            self.tables = TableStore(
                [table.description for table in config.tables],
                self._tiers,
                {table.name: float(table.cache_share) for table in config.tables},
                {table.name: table.hit_rate_threshold for table in config.tables},
            )
        except BaseException:
            for tier in self._tiers:
                tier.close()
            raise

    def problems(self) -> dict[str, str]:
        """Asks each tier for a row; returns what is wrong by the tier, "" if nothing is."""
        table = self.tables.tables[0]
        keys, rows = np.zeros(1, np.int64), np.empty((1, table.dimension), np.float32)
        found = {}
        for tier in self._tiers:
            name = f"{tier.name} {tier.address}".strip()
            try:
                tier.fetch(table.name, keys, rows)
                found[name] = ""
            except TierError as error:
                found[name] = str(error)
        return found

    def warm(self, path: _PathLike) -> dict[str, int]:
        """Lets the cache have the rows of the ids in a file.

        Returns:
            How many rows of each table are cached of those.

        Raises:
            OSError: the file cannot be read.
            ValueError: it has no ids, or those of a table that is not there.
            TierError: a tier does not answer.
        """
        try:
            return {table: self.tables.warm(table, ids) for table, ids in read_ids(path).items()}
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error.args[0]}") from error

    def counters(self) -> StoreCounters:
        """What was counted since it was opened."""
        return self.tables.counters()


def open_store(split: _PathLike, config: _PathLike | None = None) -> Store:
    """Opens the tables of a split model.

    Args:
        split: what `fusion split` has made.
        config: a file, see `read_config`; None: the tables are those files of the split model, and
            lookups wait for all rows.

    Raises: see `read_config` and `Store`.
    """
    if config is None:
        return Store(StoreConfig(split_tables(split, hit_rate_threshold=1.0)))
    return Store(read_config(config))


def read_ids(path: _PathLike) -> dict[str, NDArray[Any]]:
    """Returns ids by the names of tables.

    Args:
        path: an npz file with an array for each table, or lines of text: a table, and ids.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is neither.
    """
    if os.fspath(path).endswith(".npz"):
        try:
            with np.load(path) as arrays:
                return dict(arrays)
        except (ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: {error}") from error
    found: dict[str, list[int]] = {}
    for number, table, ids in _lines(Path(path)):
        try:
            found.setdefault(table, []).extend(map(int, ids))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    return {table: np.array(ids, np.int64) for table, ids in found.items()}


def _lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """The number of each line that is not empty, its table and its ids."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if words := line.split():
                yield number, words[0], words[1:]
