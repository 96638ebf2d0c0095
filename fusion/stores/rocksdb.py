"""Tables in a RocksDB database of this machine, by the `rocksdict` package."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fusion.stores.row_bytes import (
    bytes_of_keys,
    bytes_of_rows,
    keys_of_bytes,
    rows_of_bytes,
    write_values,
)
from fusion.stores.tier import (
    Block,
    HitMask,
    Keys,
    Rows,
    TableDescription,
    TierError,
    check_fetch,
    check_rows,
)

#: Of blocks that were read, MB a table.
_CACHE_MEGABYTES = 64


@dataclass(frozen=True)
class RocksDBOptions:
    """A RocksDB database.

    Attributes:
      path: its folder.
      read_only: only read; what others write is not seen.
      num_threads: of RocksDB's own, which flush and compact.
      max_batch_size: keys of a read and rows of a write at most.
    """

    path: str
    read_only: bool = False
    num_threads: int = 16
    max_batch_size: int = 65536

    def __post_init__(self) -> None:
        for field in ("num_threads", "max_batch_size"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)}")


class _Table(NamedTuple):
    dimension: int
    family: Any  # to read from
    handle: Any  # to write to, in batches


class RocksDB:
    """A tier of tables in one database, each a column family of its name.

    Its methods are those of a `Tier`. One process at a time may write to a database; any number may
    read one that is not being written.
    """

    name = "rocksdb"

    def __init__(self, options: RocksDBOptions) -> None:
        """Opens a database, which is made if it is not there and not `read_only`.

        Raises:
          ImportError: rocksdict is not installed.
          TierError: another process has it open, or it is damaged.
        """
        try:
            import rocksdict
        except ImportError as error:
            raise ImportError(
                "RocksDB needs the rocksdict package: pip install 'tf-embedding-fusion[store]'"
            ) from error
        self._package = rocksdict
        self._options = options
        self.address = options.path
        self.is_writable = not options.read_only
        self._tables: dict[str, _Table] = {}
        access = rocksdict.AccessType
        with self._errors(""):
            names = []
            if os.path.exists(os.path.join(self.address, "CURRENT")):
                names = rocksdict.Rdict.list_cf(self.address)
            elif options.read_only:
                raise ValueError("is not there")
            self._database = rocksdict.Rdict(
                self.address,
                self._family_options(),
                {name: self._family_options() for name in names} or None,
                # What was written last is in a log, which is read as well.
                access.read_only(False) if options.read_only else access.read_write(),
            )
        self._families = set(names)

    def open_table(self, table: TableDescription) -> None:
        """See `Tier.open_table`.

        Raises:
          TierError: it has rows of another dimension, or is not there and cannot be made.
        """
        with self._errors(table.name):
            if table.name in self._families or table.name == "default":
                family = self._database.get_column_family(table.name)
            elif self.is_writable:
                family = self._database.create_column_family(table.name, self._family_options())
                self._families.add(table.name)
            else:
                raise ValueError("is not there")
            for row in islice(family.values(), 1):
                rows_of_bytes([row], table.dimension)
        handle = self._database.get_column_family_handle(table.name)
        self._tables[table.name] = _Table(table.dimension, family, handle)

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """See `Tier.fetch`."""
        opened = self._tables[table]
        check_fetch(opened.dimension, keys, rows)
        with self._errors(table):
            # Keys of one block come after each other, which takes a quarter of the time less.
            order = np.argsort(keys)
            fields, values = bytes_of_keys(keys[order]), []
            for some in self._slices(len(keys)):
                values += opened.family.get(fields[some])
            return write_values(values, rows, order)

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        """See `Tier.put`. Each `max_batch_size` rows are written whole or not at all."""
        opened = self._tables[table]
        check_rows(opened.dimension, keys, rows)
        self._check_writable()
        fields, values = bytes_of_keys(keys), bytes_of_rows(rows)
        with self._errors(table):
            for some in self._slices(len(keys)):
                batch = self._package.WriteBatch(raw_mode=True)
                for key, row in zip(fields[some], values[some], strict=True):
                    batch.put(key, row, opened.handle)
                self._database.write(batch)

    def remove(self, table: str, keys: Keys) -> None:
        """See `Tier.remove`."""
        opened = self._tables[table]
        self._check_writable()
        fields = bytes_of_keys(keys)
        with self._errors(table):
            for some in self._slices(len(keys)):
                batch = self._package.WriteBatch(raw_mode=True)
                for key in fields[some]:
                    batch.delete(key, opened.handle)
                self._database.write(batch)

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        """See `Tier.blocks`. All rows are those of the moment in which the first block is read."""
        opened = self._tables[table]
        with self._errors(table):
            items = iter(opened.family.items())
        while True:
            with self._errors(table):
                some = [*islice(items, size)]
                if not some:
                    return
                keys, rows = zip(*some, strict=True)
                block = keys_of_bytes(keys), rows_of_bytes(rows, opened.dimension)
            yield block

    def count(self, table: str) -> int:
        """See `Tier.count`. It goes over all keys: RocksDB knows an estimate only."""
        family = self._tables[table].family
        with self._errors(table):
            return sum(1 for _ in family.keys())  # noqa: SIM118, no dict

    def dimensions(self) -> dict[str, int]:
        """The dimensions of all tables that have rows, by their names.

        Raises:
          TierError: a row is not of float32.
        """
        result = {}
        for name in sorted(self._families):
            with self._errors(name):
                for row in islice(self._database.get_column_family(name).values(), 1):
                    result[name], rest = divmod(len(row), 4)
                    if rest or not row:
                        raise ValueError(f"has a row of {len(row)} bytes")
        return result

    def close(self) -> None:
        """See `Tier.close`.

        Raises:
          TierError: what was put may not be on the disk.
        """
        with self._errors(""):
            for table in self._tables.values():
                table.family.close()
            self._tables.clear()
            self._database.close()

    def _family_options(self) -> Any:
        options = self._package.Options(raw_mode=True)
        options.create_if_missing(self.is_writable)
        options.increase_parallelism(self._options.num_threads)
        options.optimize_for_point_lookup(_CACHE_MEGABYTES)
        return options

    def _slices(self, count: int) -> Iterator[slice]:
        """Slices of so many keys, `max_batch_size` each."""
        size = self._options.max_batch_size
        return (slice(first, first + size) for first in range(0, count, size))

    def _check_writable(self) -> None:
        if not self.is_writable:
            raise io.UnsupportedOperation(f"{self.name} at {self.address}: is read only")

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        """A block in which errors of the database become a `TierError`."""
        try:
            yield
        except Exception as error:  # rocksdict has no class of its own for RocksDB's errors
            raise TierError(f"{self.name} at {self.address}", table, error) from error
