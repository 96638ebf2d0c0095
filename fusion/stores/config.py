"""Which tables a store has, and from which tiers they come."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusion.stores import hps_json
from fusion.stores.local_files import LocalFiles
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.tier import TableDescription, Tier


@dataclass(frozen=True)
class TableConfig:
    """A table of a store.

    Attributes:
      name: by which layers and tiers know it.
      dimension: elements of a row.
      folder: of its files, as `fusion split` writes them; "" if it has none.
      default: each element of the row of a key that no tier has.
      cache_share: of the table's rows, how many the cache of hot rows has, 0 to 1; 0: no cache.
      hit_rate_threshold: if this share of a call's keys or more are in the cache, the others get
        the default row and are fetched behind the call; else, and with 1, the call waits for them.
    """

    name: str
    dimension: int
    folder: str = ""
    default: float = 0.0
    cache_share: float = 0.2
    hit_rate_threshold: float = 1.0

    def __post_init__(self) -> None:
        _ = self.description
        if not 0 <= self.cache_share <= 1:
            raise ValueError(
                f"cache_share of {self.name} must be from 0 to 1, got {self.cache_share}"
            )
        if self.hit_rate_threshold < 0:
            raise ValueError(
                f"hit_rate_threshold of {self.name} must be from 0, got {self.hit_rate_threshold}"
            )

    @property
    def description(self) -> TableDescription:
        """The table as tiers know it."""
        return TableDescription(self.name, self.dimension, self.default)


@dataclass(frozen=True)
class StoreConfig:
    """Tables and their tiers.

    A row comes from the first of these that has its key: the files of the table, the local
    database, the remote one.

    Attributes:
      tables: all of them.
      rocksdb: the local database; None: there is none.
      redis: the remote one; None: there is none.
      models: names of tables by the model that they belong to, in the order of its lookups.
    """

    tables: tuple[TableConfig, ...]
    rocksdb: RocksDBOptions | None = None
    redis: RedisOptions | None = None
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter(table.name for table in self.tables)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"tables must have different names, got {twice[0]} twice")
        for table in self.tables:
            if not table.folder and self.rocksdb is None and self.redis is None:
                raise ValueError(f"table {table.name} has no folder, and there is no database")

    @classmethod
    def from_hps_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> StoreConfig:
        """A store as HPS is configured.

        Fields that do nothing here give a `UserWarning` that says why, and unknown ones another;
        docs/stores.md has a table of all fields.

        Args:
          source: a JSON file, or what it has.

        Raises:
          OSError: the file cannot be read.
          ValueError: it is no JSON, or a field is missing or has a wrong value.
        """
        config = hps_json.read(source)
        models = {
            model["model"]: _tables_of(model, f"models[{k}]")
            for k, model in enumerate(config["models"])
        }
        if len(models) < len(config["models"]):
            raise ValueError("models must have different names in `model`")
        return cls(
            tuple(table for tables in models.values() for table in tables),
            _rocksdb_of(config["persistent_db"]),
            _redis_of(config["volatile_db"]),
            {model: tuple(table.name for table in tables) for model, tables in models.items()},
        )


def table_name(model: str, table: str) -> str:
    """The name of a model's table in a store: `MODEL.TABLE`, `TABLE` of a model without a name."""
    return f"{model}.{table}" if model else table


def open_tiers(config: StoreConfig) -> list[Tier]:
    """The tiers of a store, the fastest first, with all its tables open.

    Raises:
      ImportError: a package is not installed that a tier needs.
      TierError: a tier that does not answer, or files that are damaged.
    """
    tiers: list[Tier] = []
    try:
        if folders := {table.name: table.folder for table in config.tables if table.folder}:
            tiers.append(LocalFiles(folders))
        if config.rocksdb is not None:
            tiers.append(RocksDB(config.rocksdb))
        if config.redis is not None:
            tiers.append(Redis(config.redis))
        for tier in tiers:
            for table in config.tables:
                tier.open_table(table.description)
    except BaseException:
        for tier in tiers:
            tier.close()
        raise
    return tiers


def _tables_of(model: Mapping[str, Any], path: str) -> list[TableConfig]:
    folders, sizes = model["sparse_files"], model["embedding_vecsize_per_table"]
    names = model["embedding_table_names"]
    if names is None:
        names = [f"sparse_embedding{k}" for k in range(len(folders))]
    for field_name, values in (
        ("embedding_vecsize_per_table", sizes),
        ("embedding_table_names", names),
    ):
        if len(values) != len(folders):
            raise ValueError(
                f"{path}.{field_name} must be of {len(folders)} tables, as sparse_files, "
                f"got {values!r}"
            )
    for folder in folders:
        if "://" in folder:
            raise ValueError(f"{path}.sparse_files must be folders of this machine, got {folder!r}")
    defaults = [*model["default_value_for_each_table"], *[0.0] * len(folders)]
    share = model["gpucacheper"]
    if model["embedding_cache_type"] == "static" or model["use_static_table"]:
        share = 1.0
    return [
        TableConfig(
            table_name(model["model"], name),
            size,
            folder,
            float(default),
            float(share) if model["gpucache"] else 0.0,
            float(model["hit_rate_threshold"]),
        )
        for name, size, folder, default in zip(names, sizes, folders, defaults, strict=False)
    ]


def _rocksdb_of(section: Mapping[str, Any]) -> RocksDBOptions | None:
    if section["type"] == "disabled":
        return None
    return RocksDBOptions(
        section["path"], section["read_only"], section["num_threads"], section["max_batch_size"]
    )


def _redis_of(section: Mapping[str, Any]) -> RedisOptions | None:
    if section["type"] != "redis_cluster":
        return None
    try:
        return RedisOptions(
            section["address"],
            section["user_name"],
            section["password"],
            section["num_partitions"],
            section["max_batch_size"],
            tls=section["enable_tls"],
            ca_certificate=section["tls_ca_certificate"],
            client_certificate=section["tls_client_certificate"],
            client_key=section["tls_client_key"],
        )
    except ValueError as error:
        raise ValueError(f"volatile_db: {error}") from error
