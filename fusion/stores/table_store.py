"""A store of tables: a cache of hot rows in memory over tiers that have all of them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from fusion.ops.stores import store_names
from fusion.ops.stores.cpu_kernels.layout import HotTable, StoreCall, TableCall
from fusion.runtime.upcalls.service import upcalls
from fusion.stores.config import StoreConfig, open_tiers
from fusion.stores.counters import Latency, StoreCounters, TableCounters
from fusion.stores.fetching import Fetcher
from fusion.stores.hot_rows import HotRows, Queue, Record, address_of, native, new_tables
from fusion.stores.open_stores import PATIENCE_NS, open_stores
from fusion.stores.redis import Redis
from fusion.stores.refresh import FolderFollower, Followers, RedisFollower
from fusion.stores.tier import Keys, Rows, TableDescription, Tier
from fusion.tables.arguments import key_array

#: So many keys are fetched at once where all rows of a table may be.
_BLOCK = 1 << 16

#: Seconds between looks whether lookups have ended.
_PAUSE_S = 0.0005


class TableStore:
    """Tables whose rows come from tiers, with a cache of those that were needed last.

    A lookup copies rows that are in the cache without Python's lock (the GIL), whatever other
    threads change meanwhile: each row is one version, whole. Of the distinct keys of a lookup in a
    table a share is in the cache. If that is `hit_rate_threshold` or more, the others have the
    table's default value for now, and their rows are fetched by a thread of the store; else the
    lookup waits for them. They are asked of the first tier, those that it does not have of the
    next, in one request each, for all tables of a call where a tier can do that; what several
    threads miss is asked for once. Keys that no tier has have the default value.

    Memory: of each row in the cache the row itself, 9 bytes for it, and 20 to 90 bytes of its
    index; `byte_count` is the most of all tables.

    A process that was forked has no store that was open before: it opens its own.

    Args:
      tables: what the tables are.
      tiers: where their rows are, the first is asked first. They belong to the store, which opens
        the tables in them and closes them.
      cache_rows: how many rows of a table the cache has: an int, or a float that is the share of
        the rows of the tier that has most; or one of these by the name of each table. With 0 rows
        each lookup waits.
      hit_rate_threshold: see above; a number, or one by the name of each table. With 1 or more
        lookups wait for all rows.
      promote: the kinds of tiers (`Tier.name`) that take copies of rows found in a lower tier, such
        as a "redis" over files. They must be writable, and have nothing but copies: rows are
        changed in the tiers below, and `invalidate` removes the copies.
      queue_keys: how many keys may wait to be fetched by the thread; further ones are dropped, and
        asked for again when they are looked up again.

    Raises:
      ValueError, TypeError: an argument that cannot be.
      TierError: a tier cannot open a table.
    """

    def __init__(
        self,
        tables: Sequence[TableDescription],
        tiers: Sequence[Tier],
        cache_rows: int | float | Mapping[str, int | float] = 0.1,
        hit_rate_threshold: float | Mapping[str, float] = 1.0,
        promote: Sequence[str] = (),
        queue_keys: int = 1 << 16,
    ) -> None:
        self._tables, self._tiers = list(tables), list(tiers)
        self._numbers = {table.name: number for number, table in enumerate(self._tables)}
        if not self._tables or not self._tiers:
            raise ValueError("tables and tiers must not be empty")
        if len(self._numbers) < len(self._tables):
            raise ValueError(f"tables must have different names, got {[t.name for t in tables]}")
        for name in promote:
            if not any(tier.name == name and tier.is_writable for tier in self._tiers):
                raise ValueError(f"promote must name writable tiers, got {name!r}")
        if queue_keys < 1:
            raise ValueError(f"queue_keys must be at least 1, got {queue_keys}")
        thresholds = [_of_table(hit_rate_threshold, table) for table in self._tables]
        if not all(threshold >= 0 for threshold in thresholds):
            raise ValueError(f"hit_rate_threshold must be at least 0, got {hit_rate_threshold}")
        for tier in self._tiers:
            for table in self._tables:
                tier.open_table(table)
        self._words, words = new_tables(len(self._tables))
        self._caches = [
            HotRows(own, table, self._capacity(table, _of_table(cache_rows, table)), threshold)
            for own, table, threshold in zip(words, self._tables, thresholds, strict=True)
        ]
        self._fetcher = Fetcher(self._tables, self._tiers, self._caches, promote)
        self._followers = Followers(self._tables, self._tiers, self._fetcher, promote)
        self._queue, self._background_errors = Queue(queue_keys), 0
        self._closing, self._state = threading.Lock(), "open"
        self._open_tiers = list(self._tiers)
        self._record = Record(open_stores().server, upcalls().address, PATIENCE_NS)
        self._record.open(self._words, len(self._tables), self._queue)
        self._thread = threading.Thread(target=self._fetch_queue, name="fusion-store", daemon=True)
        self._thread.start()
        open_stores().add(self._record.address, self)

    def _capacity(self, table: TableDescription, rows: int | float) -> int:
        if isinstance(rows, Integral):
            return int(rows)
        if not isinstance(rows, Real):
            raise TypeError(f"cache_rows must be an int or a float, got {rows!r}")
        if not 0 <= rows <= 1:
            raise ValueError(f"cache_rows as a share must be 0 to 1, got {rows}")
        if rows == 0:
            return 0
        return max(1, math.ceil(rows * max(tier.count(table.name) for tier in self._tiers)))

    @classmethod
    def from_config(cls, config: StoreConfig) -> TableStore:
        """A store of all tables of a configuration, and their tiers.

        Raises:
          ImportError: a package is not installed that a tier needs.
          TierError: a tier does not answer, or files are damaged.
        """
        tiers = open_tiers(config)
        try:
            return cls(
                [table.description for table in config.tables],
                tiers,
                {table.name: float(table.cache_share) for table in config.tables},
                {table.name: table.hit_rate_threshold for table in config.tables},
            )
        except BaseException:
            for tier in tiers:
                tier.close()
            raise

    @classmethod
    def from_hps_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> TableStore:
        """A store as HPS is configured, see `StoreConfig.from_hps_json`.

        Raises: see there, and `from_config`.
        """
        return cls.from_config(StoreConfig.from_hps_json(source))

    @property
    def tables(self) -> tuple[TableDescription, ...]:
        """What the tables are."""
        return tuple(self._tables)

    @property
    def byte_count(self) -> int:
        """The memory that the cache takes at most."""
        return sum(cache.byte_count for cache in self._caches)

    def lookup(self, table: str, keys: ArrayLike) -> Rows:
        """The rows of keys.

        Args:
          table: the name of a table.
          keys: integers [...].

        Returns:
          float32 [..., D].

        Raises:
          KeyError: there is no such table.
          TypeError: keys are no integers.
          ValueError: a key is no int64.
          TierError: rows are waited for, and a tier fails.
          tf.errors.FailedPreconditionError: the store is closed.
        """
        number, own = self._number(table), _keys(keys)
        rows = np.empty((*own.shape, self._tables[number].dimension), np.float32)
        missing, call = np.empty(own.size, np.int64), np.zeros(TableCall.SIZE, np.int64)
        job = np.zeros(StoreCall.SIZE, np.int64)
        call[TableCall.table], call[TableCall.key_count] = self._caches[number].address, own.size
        call[TableCall.keys], call[TableCall.out] = address_of(own), address_of(rows)
        call[TableCall.missing] = address_of(missing)
        address = self._record.address
        job[StoreCall.store], job[StoreCall.calls] = address, address_of(call)
        job[StoreCall.call_count] = 1
        begun, end = time.monotonic_ns(), native().end_lookup.call
        try:  # an interrupt may come as soon as the lookup has begun
            native().look_up_open(address_of(job))
            waiting = int(job[StoreCall.waiting_count])
            if waiting < 0:
                raise self._not_open()
            if waiting > 0:
                at = missing[:waiting]
                (fetched,) = self.rows_of([(number, own.reshape(-1)[at])])
                rows.reshape(own.size, -1)[at] = fetched
        finally:
            if job[StoreCall.waiting_count] > 0:
                end(address, begun)  # nothing is called before, where an interrupt would come
        return rows

    def rows_of(self, wanted: Sequence[tuple[int, Keys]]) -> list[Rows]:
        """The rows of keys of tables, fetched where the cache does not have them.

        Args:
          wanted: (number of a table, keys [n]); a table may be there several times.

        Returns:
          Rows [n, D] of each.

        Raises:
          TierError: a tier fails.
        """
        parts: dict[int, list[Keys]] = {}
        for number, keys in wanted:
            parts.setdefault(number, []).append(keys)
        rows = {}
        distinct = {
            number: np.unique(
                keys[0] if len(keys) == 1 else np.concatenate(keys), return_inverse=True
            )
            for number, keys in parts.items()
        }
        fetched = self._fetcher.fetch({number: own for number, (own, _) in distinct.items()})
        for number, (_, inverse) in distinct.items():
            ends = np.cumsum([len(keys) for keys in parts[number]])[:-1]
            rows[number] = iter(np.split(fetched[number][inverse], ends))
        return [next(rows[number]) for number, _ in wanted]

    def warm(self, table: str, keys: ArrayLike) -> int:
        """Loads rows of keys into the cache, the first of them if it is too small for all.

        Returns:
          How many of these keys have a row.

        Raises: see `lookup`.
        """
        number, own = self._number(table), _keys(keys).reshape(-1)
        _, first = np.unique(own, return_index=True)
        own = own[np.sort(first)][: self._caches[number].count(HotTable.capacity)]
        count = 0
        for start in range(0, len(own), _BLOCK):
            block = np.sort(own[start : start + _BLOCK])
            with self._using():
                self._fetcher.fetch({number: block})
                count += int(self._caches[number].has(block).sum())
        return count

    def update(self, table: str, keys: ArrayLike, rows: ArrayLike) -> None:
        """Writes rows: to all writable tiers, and to the cache in place of those it has.

        When it returns lookups give the new rows. Of keys that are there several times the last row
        counts. If a tier fails, some may have the new rows, and the cache asks for them again.

        Args:
          table: the name of a table.
          keys: integers [n].
          rows: [n, D].

        Raises:
          ValueError: no tier is writable except those that `promote` names, or one that is not, and
            that is asked before, has a key; or shapes do not go together. Nothing was written.
          TierError: a tier fails.
          KeyError, TypeError, tf.errors.FailedPreconditionError: see `lookup`.
        """
        number, own = self._number(table), _keys(keys).reshape(-1)
        values = np.asarray(rows, np.float32)
        if values.shape != (len(own), self._tables[number].dimension):
            wanted = (len(own), self._tables[number].dimension)
            raise ValueError(f"rows must be {wanted}, got shape {values.shape}")
        distinct, last = np.unique(own[::-1], return_index=True)
        with self._using():
            chosen = np.ascontiguousarray(values[::-1][last])
            self._fetcher.update(number, distinct, chosen)

    def invalidate(self, table: str, keys: ArrayLike | None = None) -> None:
        """Lets the next lookup of keys, or of all, ask the tiers: their rows there have changed.

        Copies leave the tiers that `promote` names.

        Raises:
          TierError: such a tier fails, and may keep copies.
          KeyError, TypeError, tf.errors.FailedPreconditionError: see `lookup`.
        """
        number = self._number(table)
        with self._using():
            self._fetcher.invalidate(number, None if keys is None else np.unique(_keys(keys)))

    def follow(self, root: str | os.PathLike[str], seconds: float = 1.0) -> FolderFollower:
        """Takes over versions of the tables while lookups go on, those that are there at once.

        The newest version replaces the files of the store. One that is broken is refused, and the
        one before it stays. See `fusion.stores.versions`.

        Args:
          root: the folder in which they appear.
          seconds: between looks whether there are any.

        Returns:
          What follows, until the store is closed; its `look` looks now.

        Raises:
          ValueError: the store has no files, follows others, or copies rows to Redis (`promote`).
          TierError: copies cannot be removed from another tier that `promote` names.
          tf.errors.FailedPreconditionError: the store is closed.
        """
        with self._using():
            return self._followers.follow_folder(root, seconds)

    def follow_redis(self, redis: Redis | None = None, seconds: float = 1.0) -> RedisFollower:
        """Takes over rows that others write to Redis and announce, by `fusion tables push`.

        Only rows that the cache has are fetched. When announcements may have been lost, as after a
        new connection, these are all of its rows.

        Args:
          redis: a tier of the store; None: the only one.
          seconds: how long a request waits for changes at most, and until a server is asked again
            that did not answer.

        Returns:
          What follows, until the store is closed.

        Raises:
          ValueError: the store has no such tier, follows it already, or copies rows to Redis above.
          tf.errors.FailedPreconditionError: the store is closed.
        """
        with self._using():
            return self._followers.follow_redis(redis, seconds)

    def counters(self) -> StoreCounters:
        """The counters since the store was opened."""
        names = [table.name for table in self._tables]
        tables = {
            name: TableCounters(
                cache.count(HotTable.hit_count),
                cache.count(HotTable.miss_count),
                cache.count(HotTable.wait_count),
                cache.count(HotTable.default_count),
                cache.count(HotTable.unknown_count),
                cache.count(HotTable.insert_count),
                cache.count(HotTable.evict_count),
            )
            for name, cache in zip(names, self._caches, strict=True)
        }
        tiers = {
            f"{tier.name} {tier.address}".strip(): {
                name: self._fetcher.counters(number, level) for number, name in enumerate(names)
            }
            for level, tier in enumerate(self._tiers)
        }
        latency = Latency.of(self._record.latency_ns, self._record.latencies)
        dropped = self._queue.dropped_count
        background_errors, refresh = self._background_errors, self._followers.counters()
        return StoreCounters(tables, tiers, latency, dropped, background_errors, refresh)

    def register(self, name: str = "default") -> TableStore:
        """Lets ops and layers find the store by a name, in place of another that has it.

        Returns:
          The store.

        Raises:
          ValueError: a process has too many names.
          tf.errors.FailedPreconditionError: the store is closed.
        """
        if self._state != "open":
            raise self._not_open()
        store_names.names().set(name, self._record.address)
        return self

    @contextmanager
    def as_default(self) -> Iterator[TableStore]:
        """A block in which the store is "default" in this process; then the one before is again."""
        before = store_names.names().get("default")
        self.register()
        try:
            yield self
        finally:
            store_names.names().set("default", before)

    def close(self) -> None:
        """Ends lookups, once those are done that have begun, and closes the tiers.

        If an interrupt ends it before, it may be called again.
        """
        with self._closing:
            if self._state == "forked" or not self._open_tiers:
                return
            self._state = "closed"
            self._record.close()
            time.sleep(_PAUSE_S)  # by then other processors have seen that it is closed
            while self._record.user_count:
                time.sleep(_PAUSE_S)
            self._followers.close()
            self._queue.wake()
            self._thread.join()
            open_stores().remove(self._record.address)
            for cache in self._caches:
                cache.release()
            with ExitStack() as closing:  # all of them, also where one fails
                while self._open_tiers:
                    closing.callback(self._open_tiers.pop().close)

    def __enter__(self) -> TableStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self) -> None:
        """Closes it in the child of a fork; the tiers' connections are the parent's."""
        self._state, self._closing = "forked", threading.Lock()
        self._record.close()

    def _number(self, table: str) -> int:
        if table not in self._numbers:
            raise KeyError(f"no table {table!r} in the store; it has {', '.join(self._numbers)}")
        return self._numbers[table]

    def _not_open(self) -> tf.errors.FailedPreconditionError:
        text = (
            "the table store was opened before this process was forked: open one in each process"
            if self._state == "forked"
            else "the table store is closed"
        )
        return tf.errors.FailedPreconditionError(None, None, text)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """A block in which the store stays open.

        Raises:
          tf.errors.FailedPreconditionError: it is closed.
        """
        is_open, end = np.zeros(1, np.int64), native().end_lookup.call
        address = self._record.address
        try:  # an interrupt may come as soon as it has entered
            self._record.enter(is_open)
            if not is_open[0]:
                raise self._not_open()
            yield
        finally:
            if is_open[0]:
                end(address, 0)

    def _fetch_queue(self) -> None:
        """The loop of the store's thread, which fetches rows that no lookup waits for."""
        while True:
            self._queue.wait()
            if self._state != "open":
                return
            entries = self._queue.take()
            wanted = {
                int(number): np.unique(entries[entries[:, 0] == number, 1])
                for number in np.unique(entries[:, 0])
            }
            try:
                self._fetcher.fetch(wanted)
            except Exception as error:
                self._background_errors += 1
                self._fetcher.log(error)


def _of_table(values: Any, table: TableDescription) -> Any:
    """The value of a table, of all or by name.

    Raises:
      ValueError: there is none.
    """
    if not isinstance(values, Mapping):
        return values
    if table.name not in values:
        raise ValueError(f"there is no value for table {table.name}: {dict(values)}")
    return values[table.name]


def _keys(keys: ArrayLike) -> NDArray[np.int64]:
    """Keys as int64 in C order.

    Raises:
      TypeError: they are no integers.
      ValueError: one is too large.
    """
    array = key_array(keys, np.int64, "keys")
    return np.ascontiguousarray(array).reshape(array.shape)
