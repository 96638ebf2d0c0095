"""Statistics of fusion in a process, for people, for JSON and for Prometheus."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fusion.passes.report.report import FusionReport
from fusion.printable import counted
from fusion.runtime.registration import op_kernels
from fusion.runtime.registration.library import chosen
from fusion.runtime.tensorflow.layout import Counters, OpTable

#: (op, or "" for the process; value)
_Sample = tuple[str, float]

#: Fields of `OpStats`, what they are multiplied by, and the metrics that they become.
_OP_METRICS = (
    ("calls", 1, "calls_total", "calls of fused ops"),
    ("rows", 1, "rows_total", "rows of fused ops"),
    ("threads", 1, "threads_total", "threads at work on a call at the same time, of all calls"),
    ("milliseconds", 1e-3, "seconds_total", "time in the kernels of fused ops"),
)

#: Fields of `FusionStats`, likewise.
_PROCESS_METRICS = (
    ("enabled", 1, "enabled", "gauge", "whether graphs are fused as TensorFlow optimizes them"),
    ("graphs_seen", 1, "graphs_seen_total", "counter", "graphs that TensorFlow showed"),
    ("columns_fused", 1, "columns_fused", "gauge", "lookups replaced in these graphs"),
    ("updates_fused", 1, "updates_fused", "gauge", "updates of tables replaced in these graphs"),
    ("parsers_fused", 1, "parsers_fused", "gauge", "parsers of Examples replaced in these graphs"),
    ("ids_fused", 1, "ids_fused", "gauge", "columns whose ids fused ops make in these graphs"),
    ("crosses_fused", 1, "crosses_fused", "gauge", "crosses of features replaced in these graphs"),
    ("milliseconds", 1e-3, "optimizer_seconds_total", "counter", "time spent on these graphs"),
    ("failures", 1, "failures_total", "counter", "graphs left alone because of an error"),
    ("timeouts", 1, "timeouts_total", "counter", "graphs left alone for lack of Python's lock"),
)


#: Fields of `FusionStats` that count what was replaced, and words for people.
FUSED = {
    "columns_fused": "column",
    "updates_fused": "update",
    "parsers_fused": "parser",
    "ids_fused": "id column",
    "crosses_fused": "crossed column",
}


def fused_counts(report: FusionReport) -> dict[str, int]:
    """Returns what a report adds to each of these fields."""
    return {
        "columns_fused": report.fused_count,
        "updates_fused": sum(one.fused and not one.fused_before for one in report.updates),
        "parsers_fused": sum(one.is_replaced for one in report.parsers),
        "ids_fused": sum(one.columns for one in report.ids if one.is_replaced)
        + sum(one.hashed for one in report.parsers if one.is_replaced),
        "crosses_fused": sum(one.crosses for one in report.crosses if one.is_replaced),
    }


@dataclass(frozen=True)
class OpStats:
    """Totals of the calls of a fused op, over all models.

    Attributes:
        op: its type.
        calls: how many there were, those that failed included.
        rows: the ids that were looked up, padding included; of ops without ids the rows that were
            combined (also those that may fill bags), gathered or updated.
        threads: the threads that worked on a call at the same time, at most, that which ran the op
            included, summed over the calls: as many as there are calls if each had one.
        milliseconds: the time in its kernels; on a GPU, what the host takes to launch them.
    """

    op: str
    calls: int
    rows: int
    threads: int
    milliseconds: float

    def __str__(self) -> str:
        return (
            f"{self.op}: {counted(self.calls, 'call')}, {counted(self.rows, 'row')}, "
            f"{self.threads / self.calls:.1f} threads, {self.milliseconds:,.1f} ms"
        )


def op_stats() -> tuple[OpStats, ...]:
    """Returns the stats of the fused ops that were called in this process so far, by name."""
    counters = defaultdict[str, list[tuple[int, ...]]](list)
    for op, table in (*op_kernels.op_tables(), *chosen.op_tables().items()):
        counters[op].append(_counters(table))
    stats = []
    for op, of_tables in sorted(counters.items()):
        calls, rows, helpers, nanoseconds = map(sum, zip(*of_tables, strict=True))
        if calls:
            stats.append(OpStats(op, calls, rows, calls + helpers, nanoseconds / 1e6))
    return tuple(stats)


def _counters(table: int) -> tuple[int, ...]:
    """Counters of the `OpTable` at an address; calls may go on between two reads."""
    address = (ctypes.c_int64 * OpTable.SIZE).from_address(table)[OpTable.counters]
    words = (ctypes.c_int64 * Counters.SIZE).from_address(address)
    fields = Counters.calls, Counters.rows, Counters.helpers, Counters.nanoseconds
    return tuple(words[field] for field in fields)


@dataclass(frozen=True)
class FusionStats:
    """What happened in this process so far.

    Attributes:
        enabled: whether graphs are fused now.
        graphs_seen: how often TensorFlow showed a graph: two times and more for each of them.
        columns_fused: how many lookups were replaced in these graphs.
        updates_fused: how many updates of tables were, what an optimizer does to a table and its
            slots in a step being one.
        parsers_fused: how many ops that parse tf.Examples were.
        ids_fused: how many columns have ids that fused ops make, by hashes and vocabularies.
        crosses_fused: how many crosses of features were replaced.
        milliseconds: the time spent in all of this, summed over threads.
        failures: how often something went wrong, and the graph stayed as it was.
        timeouts: how often a graph stayed as it was because another thread kept Python's lock (the
            GIL): for a second in which the process did nothing, or for ten.
        last_report: on the last graph with lookups, updates of tables or parsers; None when there
            was none yet.
        ops: the fused ops that were called, those of models that were rewritten before included.
    """

    enabled: bool
    graphs_seen: int
    columns_fused: int
    updates_fused: int
    parsers_fused: int
    ids_fused: int
    crosses_fused: int
    milliseconds: float
    failures: int
    timeouts: int
    last_report: FusionReport | None
    ops: tuple[OpStats, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists, strings and numbers, ready for JSON."""
        report = self.last_report
        return {
            **self.__dict__,
            "last_report": None if report is None else report.to_dict(),
            "ops": [asdict(op) for op in self.ops],
        }

    def prometheus(self) -> str:
        """Returns metrics in the text format of Prometheus, version 0.0.4."""
        return "".join(f"{line}\n" for line in self._metrics())

    def _metrics(self) -> Iterator[str]:
        """Yields the lines of all metrics."""
        for field, unit, name, help_text in _OP_METRICS:
            samples = [(op.op, getattr(op, field) * unit) for op in self.ops]
            yield from _family(f"op_{name}", "counter", help_text, samples)
        for field, unit, name, kind, help_text in _PROCESS_METRICS:
            yield from _family(name, kind, help_text, [("", getattr(self, field) * unit)])

    def __str__(self) -> str:
        called = [f"  {op}" for op in self.ops]
        ops = ["fused ops called:" if called else "no fused op was called", *called]
        state = f"enable() is {'on' if self.enabled else 'off'}"
        if not self.enabled and not self.graphs_seen:  # as in servers of rewritten models
            return "\n".join([*ops, state])
        fused = (counted(getattr(self, name), noun) for name, noun in FUSED.items())
        head = (
            f"{state}: {counted(self.graphs_seen, 'graph')} seen, fused {', '.join(fused)}, "
            f"{self.milliseconds:.1f} ms, "
            f"{counted(self.failures, 'failure')}, {counted(self.timeouts, 'timeout')}"
        )
        lines = [head, *ops]
        if self.last_report is not None:
            lines.append(f"last graph: {self.last_report}")
        return "\n".join(lines)


def _family(name: str, kind: str, help_text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    """Yields the lines of a metric."""
    yield f"# HELP fusion_{name} {help_text}"
    yield f"# TYPE fusion_{name} {kind}"
    for op, value in samples:
        label = f'{{op="{op}"}}' if op else ""
        yield f"fusion_{name}{label} {value:.15g}"
