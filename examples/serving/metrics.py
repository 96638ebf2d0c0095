"""What a server counts, in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fusion.stores.counters import Latency
from fusion.tables import StoreCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The upper bounds of the histogram's buckets."""

_QUANTILES = (0.5, 0.9, 0.99)
_PREFIX = "fusion_serving"

#: A value and its labels.
Sample = tuple[Mapping[str, str], float]


class Requests:
    """Counts requests; any number of threads may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_code: Counter[str] = Counter()
        self._rows, self._seconds = 0, 0.0
        self._buckets = [0] * (len(_SECONDS) + 1)

    def add(self, code: str, rows: int, seconds: float) -> None:
        """Counts a request.

        Args:
            code: gRPC's name of its status.
            rows: how many it had, 0 if they were not counted.
            seconds: from when it came to its answer.
        """
        with self._lock:
            self._by_code[code] += 1
            self._rows += rows
            self._seconds += seconds
            self._buckets[bisect.bisect_left(_SECONDS, seconds)] += 1

    def lines(self) -> Iterator[str]:
        """Yields the lines of its metrics."""
        with self._lock:
            codes, rows, seconds = dict(self._by_code), self._rows, self._seconds
            buckets = list(self._buckets)
        counts = [({"code": code}, count) for code, count in sorted(codes.items())]
        yield from _family("requests_total", "counter", "requests by gRPC's status", counts)
        yield from _family("rows_total", "counter", "rows of requests", [({}, rows)])
        name, below = "request_seconds", 0
        yield from _head(name, "histogram", "time of requests in the server")
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), buckets, strict=True):
            below += count
            yield _line(f"{name}_bucket", {"le": bound}, below)
        yield _line(f"{name}_sum", {}, seconds)
        yield _line(f"{name}_count", {}, below)


def store_lines(counters: StoreCounters) -> Iterator[str]:
    """Yields the lines of a table store's metrics."""
    tables = [({"table": name}, vars(one)) for name, one in counters.tables.items()]
    yield from _fields("store", tables)
    tiers = [
        ({"tier": tier, "table": table}, vars(one))
        for tier, of_tables in counters.tiers.items()
        for table, one in of_tables.items()
    ]
    yield from _fields("store_tier", tiers)
    for name, help_text, latencies in (
        ("store_lookup_seconds", "time of lookups", [({}, counters.latency)]),
        (
            "store_tier_request_seconds",
            "time of requests to a tier",
            [(labels, one["latency"]) for labels, one in tiers],
        ),
    ):
        yield from _head(name, "summary", help_text)
        for labels, latency in latencies:
            yield from _summary(name, labels, latency)
    for field in ("dropped", "background_errors"):
        count: Sample = {}, getattr(counters, field)
        yield from _family(f"store_{field}_total", "counter", f"`{field}` of the store", [count])


def _fields(
    prefix: str, counted: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]
) -> Iterator[str]:
    """The whole numbers of dataclasses, each a counter of its own."""
    names = [name for name, value in counted[0][1].items() if isinstance(value, int)]
    for name in names:
        samples = [(labels, values[name]) for labels, values in counted]
        help_text = f"`{name}` of the store's counters"
        yield from _family(f"{prefix}_{name}_total", "counter", help_text, samples)


def _summary(name: str, labels: Mapping[str, str], latency: Latency) -> Iterator[str]:
    for share in _QUANTILES:
        yield _line(name, {**labels, "quantile": str(share)}, latency.quantile(share))
    yield _line(f"{name}_sum", labels, latency.seconds)
    yield _line(f"{name}_count", labels, latency.count)


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield from _head(name, kind, help_text)
    for labels, value in samples:
        yield _line(name, labels, value)


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}_{name} {help_text}"
    yield f"# TYPE {_PREFIX}_{name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{_PREFIX}_{name}{'{' + inside + '}' if inside else ''} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
