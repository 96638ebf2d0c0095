"""Tables in a Redis server or cluster, by the `redis` package.

A table is so many hashes, its partitions: a key belongs to the partition key % num_partitions.
Their names have hash tags, so that a cluster has them in different slots, on all its nodes:

    fusion{TABLE/p0}, fusion{TABLE/p1}, ...    a field a row, see `row_bytes`
    fusion{TABLE}                              what they are: dimension, num_partitions
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    check_keys,
    check_rows,
)


@dataclass(frozen=True)
class RedisOptions:
    """How a Redis server or cluster is reached, and what tables are like there.

    Attributes:
      address: `host:port` of the server, or of some nodes of a cluster, with commas or semicolons
        between them. The first that answers gives the others.
      user, password: with which to log in; no password, no login.
      num_partitions: of each table; a table that is there has as many as it has.
      max_batch_size: rows of a command at most.
      timeout: seconds for a connection and for an answer. A request is sent once more if it fails.
      tls: whether connections are encrypted.
      ca_certificate, client_certificate, client_key: files, PEM; "": the system's, and none.
    """

    address: str = "127.0.0.1:6379"
    user: str = "default"
    password: str = field(default="", repr=False)
    num_partitions: int = 16
    max_batch_size: int = 65536
    timeout: float = 1.0
    tls: bool = False
    ca_certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""

    def __post_init__(self) -> None:
        for name in ("num_partitions", "max_batch_size", "timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        _ = self.nodes

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Hosts and ports of the address."""
        result = []
        for node in re.split("[,;]", self.address):
            match = re.fullmatch(r"\s*([^\s:]+|\[[^\s\]]+\]):(\d+)\s*", node)
            if match is None:
                raise ValueError(f"address must be host:port[,host:port...], got {self.address!r}")
            result.append((match[1].strip("[]"), int(match[2])))
        return result


class Redis:
    """A tier of tables in Redis. Its methods are those of a `Tier`.

    It connects when a table is opened, and again when a connection is lost.
    """

    name = "redis"
    is_writable = True

    def __init__(self, options: RedisOptions | None = None) -> None:
        """Makes a tier without tables.

        Raises:
          ImportError: redis is not installed.
        """
        try:
            import redis
        except ImportError as error:
            raise ImportError(
                "Redis needs the redis package: pip install 'tf-embedding-fusion[store]'"
            ) from error
        errors = redis.exceptions
        self._errors_of_redis = errors.RedisError, errors.RedisClusterException, OSError
        self._options = options or RedisOptions()
        self.address = self._options.address
        self._connected: Any = None
        self._connecting = Lock()
        self._tables: dict[str, _Table] = {}

    def open_table(self, table: TableDescription) -> None:
        """See `Tier.open_table`.

        Raises:
          TierError: no answer, or the table has rows of another dimension.
        """
        about = f"fusion{{{table.name}}}"
        with self._errors(table.name):
            known = self._client().hgetall(about)
            if len(known) < 2:
                # Of several who make it at once, one says what it is.
                self._client().hsetnx(about, "dimension", table.dimension)
                self._client().hsetnx(about, "num_partitions", self._options.num_partitions)
                known = self._client().hgetall(about)
            dimension, partitions = (int(known[f]) for f in (b"dimension", b"num_partitions"))
            if dimension != table.dimension:
                raise ValueError(f"has dimension {dimension}, not {table.dimension}")
            if partitions < 1:
                raise ValueError(f"has {partitions} partitions")
        self._tables[table.name] = _Table(table.name, dimension, partitions)

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        """See `Tier.fetch`."""
        (has_row,) = self.fetch_many([(table, keys, rows)])
        return has_row

    def fetch_many(self, requests: Sequence[tuple[str, Keys, Rows]]) -> list[HitMask]:
        """As `fetch` for each (table, keys, rows), in one request of the server.

        Raises:
          TierError: of all tables where the server does not answer, else of one.
        """
        orders, counts, commands = [], [], []
        for table, keys, rows in requests:
            opened = self._tables[table]
            check_fetch(opened.dimension, keys, rows)
            order, partitions = opened.by_partition(keys, self._options.max_batch_size)
            fields = bytes_of_keys(keys[order])
            commands += [(partition, fields[some]) for partition, some in partitions]
            orders.append(order)
            counts.append(len(partitions))
        with self._errors(", ".join(table for table, _, _ in requests)):
            pipeline = self._client().pipeline(transaction=False)
            for command in commands:
                pipeline.hmget(*command)
            answers = iter(pipeline.execute())
        masks = []
        for (table, _, rows), order, count in zip(requests, orders, counts, strict=True):
            with self._errors(table):
                values = [value for answer in islice(answers, count) for value in answer]
                masks.append(write_values(values, rows, order))
        return masks

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        """See `Tier.put`. If it fails, any of the rows may have been written."""
        opened = self._tables[table]
        check_rows(opened.dimension, keys, rows)
        order, partitions = opened.by_partition(keys, self._options.max_batch_size)
        items = [b""] * (2 * len(keys))
        items[::2], items[1::2] = bytes_of_keys(keys[order]), bytes_of_rows(rows[order])
        with self._errors(table):
            pipeline = self._client().pipeline(transaction=False)
            for partition, some in partitions:
                pipeline.hset(partition, items=items[2 * some.start : 2 * some.stop])
            pipeline.execute()

    def remove(self, table: str, keys: Keys) -> None:
        """See `Tier.remove`."""
        check_keys(keys)
        order, partitions = self._tables[table].by_partition(keys, self._options.max_batch_size)
        fields = bytes_of_keys(keys[order])
        with self._errors(table):
            pipeline = self._client().pipeline(transaction=False)
            for partition, some in partitions:
                pipeline.hdel(partition, *fields[some])
            pipeline.execute()

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        """See `Tier.blocks`. The keys of a partition are in memory while it is read."""
        opened = self._tables[table]
        for number in range(opened.partitions):
            seen: set[bytes] = set()  # Redis may give a key again
            cursor = -1
            while cursor:
                with self._errors(table):
                    cursor, some = self._client().hscan(
                        opened.partition(number), max(cursor, 0), count=size
                    )
                    new = {key: row for key, row in some.items() if key not in seen}
                    seen |= new.keys()
                    block = keys_of_bytes([*new]), rows_of_bytes([*new.values()], opened.dimension)
                if new:
                    yield block

    def count(self, table: str) -> int:
        """See `Tier.count`."""
        opened = self._tables[table]
        with self._errors(table):
            pipeline = self._client().pipeline(transaction=False)
            for number in range(opened.partitions):
                pipeline.hlen(opened.partition(number))
            return sum(pipeline.execute())

    def close(self) -> None:
        """See `Tier.close`."""
        self._tables.clear()
        if self._connected is not None:
            self._connected.close()
        self._connected = None

    @property
    def options(self) -> RedisOptions:
        """How it is reached."""
        return self._options

    def dimensions(self) -> dict[str, int]:
        """The dimensions of all tables that it has, by their names.

        Raises:
          TierError: no answer.
        """
        with self.connection("") as client:
            names = sorted(
                match[1].decode()
                for key in client.scan_iter(match="fusion{*}", count=1000)
                if (match := re.fullmatch(rb"fusion\{([^/]+)\}", key, re.DOTALL))
            )
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.hget(f"fusion{{{name}}}", "dimension")
            known = zip(names, pipeline.execute(), strict=True)
            return {name: int(dimension) for name, dimension in known if dimension is not None}

    @contextmanager
    def connection(self, table: str) -> Iterator[Any]:
        """A client of the package, in a block in which its errors become a `TierError`."""
        with self._errors(table):
            yield self._client()

    def _client(self) -> Any:
        """A client of the package, which threads share."""
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def _connect(self) -> Any:
        from redis import Redis as Server
        from redis.backoff import NoBackoff
        from redis.cluster import ClusterNode, RedisCluster
        from redis.retry import Retry

        options = self._options
        arguments: dict[str, Any] = {
            "username": options.user if options.password else None,
            "password": options.password or None,
            "socket_timeout": options.timeout,
            "socket_connect_timeout": options.timeout,
            "retry": Retry(NoBackoff(), 1),
        }
        if options.tls:
            arguments |= {
                "ssl": True,
                "ssl_ca_certs": options.ca_certificate or None,
                "ssl_certfile": options.client_certificate or None,
                "ssl_keyfile": options.client_key or None,
            }
        failure: Exception | None = None
        for host, port in options.nodes:
            server = Server(host, port, **arguments)
            try:
                is_cluster = server.info("cluster")["cluster_enabled"]
            except self._errors_of_redis as error:
                failure = error
                continue
            if is_cluster:
                nodes = [ClusterNode(host, port) for host, port in options.nodes]
                return RedisCluster(startup_nodes=nodes, **arguments)
            if len(options.nodes) > 1:
                raise ValueError(f"{host}:{port} is no node of a cluster")
            return server
        assert failure is not None
        raise failure

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        """A block in which errors of the client, or of what it gives, become a `TierError`."""
        try:
            yield
        except (*self._errors_of_redis, ValueError) as error:
            raise TierError(f"{self.name} at {self.address}", table, error) from error


@dataclass(frozen=True)
class _Table:
    name: str
    dimension: int
    partitions: int

    def partition(self, number: int) -> str:
        """The name of a hash."""
        return f"fusion{{{self.name}/p{number}}}"

    def by_partition(
        self, keys: Keys, max_keys: int
    ) -> tuple[NDArray[np.intp], list[tuple[str, slice]]]:
        """The order of keys by partition, and the partition of each slice of them.

        Args:
          keys: [n].
          max_keys: of a slice; a larger partition has several slices.
        """
        numbers = keys % self.partitions
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=self.partitions)).tolist()
        slices = [
            (self.partition(number), slice(first, min(first + max_keys, end)))
            for number, (start, end) in enumerate(pairwise([0, *ends]))
            for first in range(start, end, max_keys)
        ]
        return order, slices
