"""What a table store counts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fusion.ops.stores.cpu_kernels.layout import HISTOGRAM_BUCKETS, OCTAVE_BUCKETS


@dataclass(frozen=True)
class Latency:
    """How long calls took.

    Attributes:
      count: how many they were.
      seconds: of all together.
      buckets: how many took how long: bucket k begins at `bucket_start(k)`.
    """

    count: int
    seconds: float
    buckets: tuple[int, ...] = field(repr=False)

    @classmethod
    def of(cls, nanoseconds: int, buckets: Sequence[int]) -> Latency:
        """That of a histogram."""
        return cls(sum(buckets), nanoseconds * 1e-9, tuple(buckets))

    def quantile(self, share: float) -> float:
        """So many seconds or less took this share of the calls, an eighth too many at most."""
        below, wanted = 0, share * self.count
        for bucket, count in enumerate(self.buckets):
            below += count
            if count and below >= wanted:
                return bucket_start(bucket + 1) * 1e-9
        return 0.0

    def to_dict(self) -> dict[str, float]:
        """For JSON: count, seconds, p50 and p99."""
        quantiles = {"p50": self.quantile(0.5), "p99": self.quantile(0.99)}
        return {"count": self.count, "seconds": self.seconds, **quantiles}


def bucket_start(bucket: int) -> int:
    """The nanoseconds from which on a time is in a bucket, as `lookup.bucket_of_latency` has it."""
    if bucket < 2 * OCTAVE_BUCKETS:
        return bucket
    octave, rest = divmod(bucket - OCTAVE_BUCKETS, OCTAVE_BUCKETS)
    return (rest + OCTAVE_BUCKETS) << octave


def bucket_of(nanoseconds: int) -> int:
    """The bucket of a time."""
    octave = max(nanoseconds.bit_length() - OCTAVE_BUCKETS.bit_length(), 0)
    return min(octave * OCTAVE_BUCKETS + (nanoseconds >> octave), HISTOGRAM_BUCKETS - 1)


@dataclass(frozen=True)
class TableCounters:
    """What became of the keys of a table, repeated ones included.

    Attributes:
      hits: keys whose row was in the cache.
      misses: those whose row was not.
      waits: lookups that waited for rows.
      defaults: misses that had the default value while their rows were fetched.
      unknown: distinct keys, of all fetches, that no tier had; they have the default value.
      inserted, evicted: rows that the cache took, and those that made room.
    """

    hits: int
    misses: int
    waits: int
    defaults: int
    unknown: int
    inserted: int
    evicted: int


@dataclass(frozen=True)
class TierCounters:
    """What a tier was asked for of a table.

    Attributes:
      requests: how often, and how many of them failed.
      hits, misses: keys that it had, and had not.
      byte_count: of rows that came.
      latency: of requests; those for several tables count for each.
    """

    requests: int
    errors: int
    hits: int
    misses: int
    byte_count: int
    latency: Latency


@dataclass(frozen=True)
class RefreshCounters:
    """What a store has taken over from the folder and from the Redis that it follows.

    Attributes:
      version: the number of the version that is read; None: there is none.
      taken_versions, refused_versions: how many were taken over, and how many were broken; one that
        is broken in another way later counts again.
      refusals: why those are refused that are newer than `version`, by their numbers.
      rows: in the cache, which were replaced.
      gaps: how often changes in Redis were dropped before they were read, and all rows replaced.
      errors: how often a folder or a tier did not answer.
    """

    version: int | None = None
    taken_versions: int = 0
    refused_versions: int = 0
    refusals: dict[int, str] = field(default_factory=dict)
    rows: int = 0
    gaps: int = 0
    errors: int = 0

    def __add__(self, other: RefreshCounters) -> RefreshCounters:
        return RefreshCounters(
            self.version if other.version is None else other.version,
            self.taken_versions + other.taken_versions,
            self.refused_versions + other.refused_versions,
            {**self.refusals, **other.refusals},
            self.rows + other.rows,
            self.gaps + other.gaps,
            self.errors + other.errors,
        )


@dataclass(frozen=True)
class StoreCounters:
    """What a store has counted since it was opened.

    Attributes:
      tables: by their names.
      tiers: by the names of tiers and of tables.
      latency: of lookups, those of ops and of Python.
      dropped: keys whose rows would have been fetched without a wait, had there been room in the
        queue.
      background_errors: failed fetches that no lookup waited for.
      refresh: what was taken over.
    """

    tables: dict[str, TableCounters]
    tiers: dict[str, dict[str, TierCounters]]
    latency: Latency
    dropped: int
    background_errors: int
    refresh: RefreshCounters = RefreshCounters()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tables": {name: dict(vars(one)) for name, one in self.tables.items()},
            "tiers": {
                tier: {
                    table: {**vars(one), "latency": one.latency.to_dict()}
                    for table, one in tables.items()
                }
                for tier, tables in self.tiers.items()
            },
            "latency": self.latency.to_dict(),
            "dropped": self.dropped,
            "background_errors": self.background_errors,
            "refresh": dict(vars(self.refresh)),
        }


class TierMeter:
    """Counts what a tier is asked for of a table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._errors = self._hits = self._misses = self._bytes = 0
        self._nanoseconds, self._buckets = 0, [0] * HISTOGRAM_BUCKETS

    def add(self, hits: int, misses: int, byte_count: int, nanoseconds: int) -> None:
        """Counts a request."""
        with self._lock:
            self._requests += 1
            self._hits += hits
            self._misses += misses
            self._bytes += byte_count
            self._nanoseconds += nanoseconds
            self._buckets[bucket_of(nanoseconds)] += 1

    def add_error(self) -> None:
        """Counts a request that failed."""
        with self._lock:
            self._requests += 1
            self._errors += 1

    def counters(self) -> TierCounters:
        """What there is."""
        with self._lock:
            latency = Latency.of(self._nanoseconds, self._buckets)
            counts = self._requests, self._errors, self._hits, self._misses, self._bytes
            return TierCounters(*counts, latency)
