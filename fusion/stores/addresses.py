"""Where tables are, as the command line has it: folders, RocksDB databases, Redis."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fusion.stores.local_files import LocalFiles
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.rocksdb import RocksDB, RocksDBOptions
from fusion.stores.tier import TableDescription, Tier
from fusion.stores.versions import is_version, read_version
from fusion.tables import files

_ROCKSDB, _REDIS = "rocksdb:", ("redis://", "rediss://")

#: The variable of the environment that has Redis's password, where an address has none.
PASSWORD = "FUSION_REDIS_PASSWORD"


@dataclass(frozen=True)
class Tables:
    """Tables in a tier.

    Attributes:
      tier: in which they are; they are not open.
      dimensions: of all of them, by their names.
    """

    tier: Tier
    dimensions: Mapping[str, int]

    def open(self, table: str) -> None:
        """Opens one of them.

        Raises:
          TierError: it cannot be opened.
        """
        self.tier.open_table(TableDescription(table, self.dimensions[table]))


def open_address(
    address: str, writable: bool = False, partitions: int = 16, timeout: float = 10.0
) -> Tables:
    """Opens what has tables.

    Args:
      address: a folder of tables, of a version, or of a split model; `rocksdb:PATH`; or
        `redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]`, a server or nodes of a cluster, with
        `rediss://` by TLS. USER and PASSWORD are quoted as in URLs; the environment's
        FUSION_REDIS_PASSWORD is the password of an address without one.
      writable: whether a RocksDB database is opened, or made, to be written.
      partitions: of tables that are new in Redis.
      timeout: seconds for an answer of Redis.

    Raises:
      ImportError: a package is not installed.
      OSError, ValueError, TierError: there is nothing of that kind.
    """
    if address.startswith(_REDIS):
        redis = Redis(_redis_options(address, partitions, timeout))
        return Tables(redis, redis.dimensions())
    if address.startswith(_ROCKSDB):
        database = RocksDB(RocksDBOptions(address.removeprefix(_ROCKSDB), read_only=not writable))
        return Tables(database, database.dimensions())
    return _tables_in_folder(Path(address))


def is_folder(address: str) -> bool:
    """Whether an address is that of a folder."""
    return not address.startswith((_ROCKSDB, *_REDIS))


def _redis_options(address: str, partitions: int, timeout: float) -> RedisOptions:
    scheme, _, rest = address.partition("://")
    login, _, nodes = rest.rpartition("@")
    user, _, password = (unquote(part) for part in login.partition(":"))
    return RedisOptions(
        nodes.rstrip("/"),
        user=user or "default",
        password=password or os.environ.get(PASSWORD, ""),
        num_partitions=partitions,
        timeout=timeout,
        tls=scheme == "rediss",
    )


def _tables_in_folder(folder: Path) -> Tables:
    if is_version(folder):
        tables = read_version(folder).tables
        folders = {name: table.folder for name, table in tables.items()}
        return Tables(LocalFiles(folders), {name: own.dimension for name, own in tables.items()})
    folders = {own.name: own for own in sorted(folder.iterdir()) if files.is_table(own)}
    if not folders:
        raise ValueError(f"{folder}: has no tables")
    dimensions = {name: files.dimension_of(own) for name, own in folders.items()}
    return Tables(LocalFiles(folders), dimensions)
