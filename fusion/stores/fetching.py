"""Fetches rows that the cache lacks from the tiers: one request a tier, each key once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fusion.stores.counters import TierCounters, TierMeter
from fusion.stores.hot_rows import HotRows
from fusion.stores.tier import HitMask, Keys, Rows, TableDescription, Tier, TierError

_logger = logging.getLogger("fusion")

#: Rows in the cache that are replaced at once.
_BLOCK = 1 << 14

#: (table, keys, rows), as arguments of `Tier.fetch`.
Request = tuple[str, Keys, Rows]


@runtime_checkable
class ManyTables(Protocol):
    """A tier that fetches rows of several tables in one request."""

    def fetch_many(self, requests: Sequence[Request]) -> list[HitMask]:
        """As `Tier.fetch` for each request."""


def fetch_many(tier: Tier, requests: Sequence[Request]) -> list[HitMask]:
    """Fetches rows of several tables from a tier: in one request, if it can."""
    if isinstance(tier, ManyTables):
        return tier.fetch_many(requests)
    return [tier.fetch(*request) for request in requests]


class _Rest(NamedTuple):
    """Keys of a flight that have no rows yet.

    Attributes:
      at: where they are; None: they are all of its keys.
      keys: [n].
      rows: [n, D], where they come; those of the flight itself if it is all of them.
    """

    at: NDArray[Any] | None
    keys: Keys
    rows: Rows

    @property
    def request(self) -> tuple[Keys, Rows]:
        """The arguments of the call of a tier."""
        return self.keys, self.rows


class _Flight:
    """Rows of a table that are on their way, which others may wait for.

    Attributes:
      keys: [n], ascending.
      landed: is set when there are rows, or an error.
      rows, has_row: of the keys.
      stale: the keys whose rows may have changed since they were read.
      error: why there are none.
    """

    def __init__(self, keys: Keys, dimension: int, landed: threading.Event) -> None:
        self.keys, self.landed = keys, landed
        self.rows = np.empty((len(keys), dimension), np.float32)
        self.has_row = np.zeros(len(keys), np.bool_)
        self.stale = np.zeros(len(keys), np.bool_)
        self.error: Exception | None = None

    def indices(self, keys: Keys) -> NDArray[np.int64]:
        """Where keys are, -1 for those that are not there."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)

    def wanted(self) -> _Rest:
        """The keys without a row so far."""
        if not self.has_row.any():
            return _Rest(None, self.keys, self.rows)
        at = np.flatnonzero(~self.has_row)
        return _Rest(at, self.keys[at], np.empty((len(at), self.rows.shape[1]), np.float32))

    def take(self, rest: _Rest, hits: HitMask) -> None:
        """Takes the rows that a tier has."""
        if rest.at is None:
            self.has_row = hits
        else:
            self.rows[rest.at[hits]], self.has_row[rest.at[hits]] = rest.rows[hits], True


#: A flight of another lookup, which of the wanted keys are in it, and where.
_Shared = tuple[_Flight, NDArray[np.int64], NDArray[np.int64]]


class Fetcher:
    """Brings rows from the tiers into the cache.

    Args:
      tables: the tables, by their numbers.
      tiers: the upper ones first.
      caches: the hot rows of each table.
      promote: the names of tiers that take copies of rows of lower ones.
    """

    def __init__(
        self,
        tables: Sequence[TableDescription],
        tiers: Sequence[Tier],
        caches: Sequence[HotRows],
        promote: Collection[str],
    ) -> None:
        self._tables, self._tiers, self._caches = tables, tiers, caches
        self._copy_levels = [
            level
            for level, tier in enumerate(tiers[:-1])
            if tier.name in promote and tier.is_writable
        ]
        self._lock = threading.Lock()  # of flights, and of what changes the cache
        self._writing = threading.RLock()  # of rows, in all tiers and in the cache in one order
        self._flights: list[list[_Flight]] = [[] for _ in tables]
        self._meters = [[TierMeter() for _ in tables] for _ in tiers]
        self._logged: set[tuple[str, ...]] = set()

    def fetch(self, wanted: Mapping[int, Keys]) -> dict[int, Rows]:
        """The rows of keys, the default one of those that no tier has.

        Args:
          wanted: by numbers of tables keys [n], ascending and distinct.

        Raises:
          TierError: a tier fails, here or where others asked for the same rows.
        """
        own, shared = self._begin(wanted)
        try:
            self._bring(own)
        except BaseException as error:
            of_others = error if isinstance(error, Exception) else RuntimeError("interrupted")
            for flight in own.values():
                flight.error = of_others
            raise
        finally:
            self._end(own)
        result = {}
        for number, keys in wanted.items():
            if not shared[number]:
                result[number] = own[number].rows
                continue
            rows = np.empty((len(keys), self._tables[number].dimension), np.float32)
            rest = np.ones(len(keys), np.bool_)
            for flight, at, places in shared[number]:
                flight.landed.wait()
                if flight.error is not None:
                    raise flight.error
                rows[at], rest[at] = flight.rows[places], False
            rows[rest] = own[number].rows
            result[number] = rows
        return result

    def _begin(
        self, wanted: Mapping[int, Keys]
    ) -> tuple[dict[int, _Flight], dict[int, list[_Shared]]]:
        """The keys to fetch here, and those that others fetch already."""
        own, shared, landed = {}, {}, threading.Event()
        with self._lock:
            for number, keys in wanted.items():
                rest, shared[number] = np.ones(len(keys), np.bool_), list[_Shared]()
                for flight in self._flights[number]:
                    places = flight.indices(keys)
                    is_there = rest & (places >= 0)
                    is_there[is_there] = ~flight.stale[places[is_there]]
                    if is_there.any():
                        at = np.flatnonzero(is_there)
                        shared[number].append((flight, at, places[at]))
                        rest &= ~is_there
                own_keys = keys[rest] if shared[number] else keys
                own[number] = _Flight(own_keys, self._tables[number].dimension, landed)
                self._flights[number].append(own[number])
        return own, shared

    def _end(self, own: Mapping[int, _Flight]) -> None:
        with self._lock:
            for number, flight in own.items():
                self._flights[number].remove(flight)
                flight.landed.set()  # all have the same one

    def _bring(self, own: Mapping[int, _Flight]) -> None:
        """Fills flights, and the cache; rows fetched before a tier fails stay in the cache."""
        cached = {}
        for number, flight in own.items():
            # Others may have brought rows since they were missed.
            cached[number] = self._caches[number].read(flight.keys, flight.rows)
            flight.has_row = cached[number].copy()
        try:
            for level, tier in enumerate(self._tiers):
                if all(flight.has_row.all() for flight in own.values()):
                    break
                self._ask(level, tier, own)
        finally:
            self._keep(own, cached)
        for number, flight in own.items():
            unknown = len(flight.keys) - int(np.count_nonzero(flight.has_row))
            if unknown:
                flight.rows[~flight.has_row] = self._tables[number].default
                with self._lock:
                    self._caches[number].add_unknown(unknown)

    def _ask(self, level: int, tier: Tier, own: Mapping[int, _Flight]) -> None:
        """Asks a tier for all rows that are missing so far."""
        wanted = {number: flight.wanted() for number, flight in own.items()}
        wanted = {number: rest for number, rest in wanted.items() if len(rest.keys)}
        names = [self._tables[number].name for number in wanted]
        requests = [(n, *rest.request) for n, rest in zip(names, wanted.values(), strict=True)]
        begun = time.monotonic_ns()
        try:
            masks = fetch_many(tier, requests)
        except TierError:
            for number in wanted:
                self._meters[level][number].add_error()
            raise
        passed = time.monotonic_ns() - begun
        for (number, rest), has in zip(wanted.items(), masks, strict=True):
            hits, row_bytes = int(np.count_nonzero(has)), rest.rows.itemsize * rest.rows.shape[1]
            meter = self._meters[level][number]
            meter.add(hits, len(has) - hits, hits * row_bytes, passed)
            own[number].take(rest, has)
            if hits and self._copy_levels:
                at = np.flatnonzero(has) if rest.at is None else rest.at[has]
                self._put_above(level, number, own[number], at)

    def _put_above(self, level: int, number: int, flight: _Flight, at: NDArray[np.int64]) -> None:
        """Copies rows to the upper tiers that take them; a failure is ignored."""
        name = self._tables[number].name
        for upper in self._copy_levels:
            if upper >= level:
                break
            tier = self._tiers[upper]
            try:
                with self._writing:
                    fresh = at[~flight.stale[at]]
                    tier.put(name, flight.keys[fresh], flight.rows[fresh])
            except TierError as error:
                self._meters[upper][number].add_error()
                self.log(error)

    def _keep(self, own: Mapping[int, _Flight], cached: Mapping[int, HitMask]) -> None:
        """Inserts fetched rows into the cache, if they are still those of their keys."""
        with self._lock:
            for number, flight in own.items():
                is_new = flight.has_row & ~flight.stale & ~cached[number]
                if is_new.any():
                    self._caches[number].insert(flight.keys, flight.rows, is_new)

    def update(self, number: int, keys: Keys, rows: Rows) -> None:
        """Writes rows of distinct keys to all writable tiers, and replaces those in the cache.

        Raises:
          ValueError: no tier is writable except those of copies, or a tier that is not, and that is
            asked before, has a key.
          TierError: a tier fails.
        """
        table = self._tables[number]
        for level, tier in enumerate(self._tiers):
            if level in self._copy_levels:
                continue
            if tier.is_writable:
                break
            has_row = tier.fetch(table.name, keys, np.empty_like(rows))
            if has_row.any():
                key = keys[has_row][0]
                raise ValueError(
                    f"{tier.name}, table {table.name}: has key {key}, and is read only"
                )
        else:
            copies = ", but for copies of rows" if self._copy_levels else ""
            raise ValueError(f"no tier of table {table.name} is writable{copies}")
        with self._writing:
            with self._lock:
                self._mark_stale(number, keys)  # rows that come now are not promoted any more
            try:
                for tier in self._tiers:
                    if tier.is_writable:
                        tier.put(table.name, keys, rows)
            except BaseException:
                self.invalidate(number, keys)  # some tier may have the new rows
                raise
            with self._lock:
                self._mark_stale(number, keys)
                self._caches[number].replace(keys, rows)

    def invalidate(self, number: int, keys: Keys | None) -> None:
        """Lets the next lookup of keys, of all with None, ask the tiers that have no copies.

        Raises:
          TierError: a tier of copies fails, and may keep some; the cache has none.
        """
        with self._writing:
            try:
                self.remove_copies(number, keys)
            finally:
                self._forget(number, keys)

    def remove_copies(self, number: int, keys: Keys | None) -> None:
        """Takes keys, all with None, out of the tiers that have copies of rows of lower ones.

        Raises:
          TierError: a tier fails, and may keep copies.
        """
        name = self._tables[number].name
        with self._writing:
            for level in self._copy_levels:
                tier = self._tiers[level]
                if keys is not None:
                    tier.remove(name, keys)
                    continue
                for block, _ in tier.blocks(name, _BLOCK):
                    tier.remove(name, block)
            with self._lock:
                # Not before: who asks a tier while it still has a copy may get an older row.
                self._mark_stale(number, keys)

    def _forget(self, number: int, keys: Keys | None) -> None:
        with self._writing, self._lock:
            self._mark_stale(number, keys)
            self._caches[number].remove(keys)

    def refresh(self, number: int, keys: Keys | None) -> int:
        """Replaces rows in the cache by those that the tiers have now.

        When it returns lookups that begin have no older rows; until then they have some.

        Args:
          number: of a table.
          keys: distinct ones; None: all that are in the cache.

        Returns:
          How many rows were in the cache.

        Raises:
          TierError: a tier fails; the keys whose rows it was asked for have left the cache.
        """
        cache, count = self._caches[number], 0
        with self._lock:
            self._mark_stale(number, keys)
            known = cache.keys() if keys is None else keys
        for start in range(0, len(known), _BLOCK):
            some = np.unique(known[start : start + _BLOCK])
            with self._writing:  # `update` does not come between
                block = some[cache.has(some)]
                try:
                    flight = self._from_tiers(number, block)
                except BaseException:
                    self._forget(number, known[start:])
                    raise
                with self._lock:
                    self._mark_stale(number, some)  # who read the cache meanwhile has older rows
                    cache.replace(block[flight.has_row], flight.rows[flight.has_row])
                    cache.remove(block[~flight.has_row])
            count += len(block)
        return count

    def _from_tiers(self, number: int, keys: Keys) -> _Flight:
        """The rows of keys in the tiers, without the cache."""
        flight = _Flight(keys, self._tables[number].dimension, threading.Event())
        for level, tier in enumerate(self._tiers):
            if flight.has_row.all():
                break
            self._ask(level, tier, {number: flight})
        return flight

    def _mark_stale(self, number: int, keys: Keys | None) -> None:
        """Notes that rows which are on their way may be old ones."""
        for flight in self._flights[number]:
            if keys is None:
                flight.stale[:] = True
            else:
                places = flight.indices(keys)
                flight.stale[places[places >= 0]] = True

    def counters(self, number: int, level: int) -> TierCounters:
        """The requests to a tier for a table."""
        return self._meters[level][number].counters()

    def log(self, error: Exception) -> None:
        """Logs the first error of each kind, tier and table."""
        kind = type(error).__name__, getattr(error, "tier", ""), getattr(error, "table", "")
        if kind not in self._logged:
            self._logged.add(kind)
            _logger.warning("%s (further errors of this kind are only counted)", error)
