"""What was measured of one model or of two: plain values, ready for a table, JSON and a plot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

IN_GRAPH = "in graph"
"""The signature's graph in a Session that gets and gives nothing: its inputs lie in variables."""

END_TO_END = "end to end"
"""A call of the signature from Python, NumPy arrays in and out."""


@dataclass(frozen=True)
class Measurement:
    """One model under one load.

    Attributes:
        way: IN_GRAPH or END_TO_END.
        batch: examples per call.
        clients: threads that call, each as soon as its last call is done.
        model: 0 for the first model, 1 for the second.
        calls: how many calls were timed. Of fewer than 100 the 99th percentile is little else than
            the slowest one.
        p50_ms, p90_ms, p99_ms: percentiles of a call's latency in milliseconds.
        examples_per_s: examples per second of all clients together.
    """

    way: str
    batch: int
    clients: int
    model: int
    calls: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    examples_per_s: float


@dataclass(frozen=True)
class Ratio:
    """The second model's throughput over the first's, under one load.

    Attributes:
        way, batch, clients: as in `Measurement`.
        median, low, high: over the rounds, in each of which both models ran.
    """

    way: str
    batch: int
    clients: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class BenchReport:
    """The measurements of one signature.

    Attributes:
        models: the paths of the one or two models, as they were given.
        signature: the signature's title.
        inputs: where the inputs came from.
        outputs: how the outputs of two models compare; None for one model.
        seconds: for how long each model was called under each load.
        machine: the processor, the number of cores and the versions of the packages.
        busy_elsewhere: how many cores other programs kept busy meanwhile, on average.
        measurements: way by way, batch by batch, by clients, the models side by side.
        ratios: in the same order, one for each load; empty for one model.
    """

    models: tuple[str, ...]
    signature: str
    inputs: str
    outputs: str | None
    seconds: float
    machine: dict[str, str | int]
    busy_elsewhere: float
    measurements: tuple[Measurement, ...]
    ratios: tuple[Ratio, ...]

    def ratio(self, measurement: Measurement) -> Ratio | None:
        """Returns the ratio under the load of a measurement of the second model, else None."""
        load = (measurement.way, measurement.batch, measurement.clients)
        same = (r for r in self.ratios if (r.way, r.batch, r.clients) == load)
        return next(same, None) if measurement.model else None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists, strings and numbers, ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> BenchReport:
        """Returns the report that gave `plain`, also after its way through JSON."""
        lists = {
            "models": tuple(plain["models"]),
            "measurements": tuple(Measurement(**fields) for fields in plain["measurements"]),
            "ratios": tuple(Ratio(**fields) for fields in plain["ratios"]),
        }
        return BenchReport(**{**plain, **lists})
