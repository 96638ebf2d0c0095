"""What was measured of one model or of two: plain values, ready for a table, JSON and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os.path import commonpath, relpath
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
        fused_share: the share of a call's latency that is in kernels of fused ops, from 0 to 1.
        parts: the share of each part of a call, "parsing", "ids", "lookups" and "dense" (see
            `CallPart`), in the time of all ops of some calls that are traced; empty end to end.
        requests: of calls of requests, how many a call has; its examples are their candidates.
        signature: of calls of requests, the name of the signature.
        input_bytes: of calls of requests, the bytes of all inputs.
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
    fused_share: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    requests: int = 0
    signature: str = ""
    input_bytes: int = 0

    @property
    def load(self) -> tuple[str, int, int, int]:
        """What the measurements of two models that are compared have in common."""
        return self.way, self.batch, self.clients, self.requests


@dataclass(frozen=True)
class Ratio:
    """The second model's throughput over the first's, under one load.

    Attributes:
        way, batch, clients, requests: as in `Measurement`.
        median, low, high: over the rounds, in each of which both models ran.
    """

    way: str
    batch: int
    clients: int
    median: float
    low: float
    high: float
    requests: int = 0

    @property
    def load(self) -> tuple[str, int, int, int]:
        """As that of the measurements."""
        return self.way, self.batch, self.clients, self.requests


@dataclass(frozen=True)
class BenchReport:
    """The measurements of one signature, or of one and of those that take its requests once.

    Attributes:
        models: the paths of the one or two models, as they were given; of requests twice the same
            one if it is alone.
        signature: the signature's title.
        inputs: where the inputs came from.
        outputs: how the outputs of two models compare; None for one model.
        seconds: for how long each model was called under each load.
        machine: the processor, the number of cores and the versions of the packages.
        busy_elsewhere: how many cores other programs kept busy meanwhile, on average.
        measurements: way by way, batch by batch, by clients, the models side by side.
        ratios: in the same order, one for each load; empty for one model.
        request_inputs: of requests, the inputs or features that have one row for each.
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
    request_inputs: tuple[str, ...] = ()

    def ratio(self, measurement: Measurement) -> Ratio | None:
        """Returns the ratio under the load of a measurement of the second model, else None."""
        same = (ratio for ratio in self.ratios if ratio.load == measurement.load)
        return next(same, None) if measurement.model else None

    def conclusion(self) -> str:
        """Returns a sentence: how much faster the second model is, and how certain that is.

        Under a load the difference is clear if all rounds say which model is faster.
        """
        first, second = short_names(self.models)
        if first == second and self.request_inputs:
            new = dict.fromkeys(m.signature for m in self.measurements if m.model)
            first, second = self.signature, " and ".join(new)
        ways = dict.fromkeys(ratio.way for ratio in self.ratios)
        return f"{second} beside {first}: {'; '.join(map(self._conclusion, ways))}"

    def _conclusion(self, way: str) -> str:
        ratios = [ratio for ratio in self.ratios if ratio.way == way]
        medians = sorted(ratio.median for ratio in ratios)
        spread = f"{medians[0]:.2f} to {medians[-1]:.2f}"
        clear = [ratio.low > 1 for ratio in ratios if ratio.low > 1 or ratio.high < 1]
        if clear and all(is_faster == (medians[0] > 1) for is_faster in clear):
            median = statistics.median(medians)
            loads = f"{len(clear)} of {len(ratios)} loads"
            return f"{way} {median:.2f} times as fast ({spread}), clearly so under {loads}"
        shares = [m.fused_share for m in self.measurements if (m.way, m.model) == (way, 1)]
        share = statistics.median(shares)
        why = f", fused ops are {share:.0%} of a call" if share else ""
        return f"{way} no clear difference ({spread}){why}"

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
            "request_inputs": tuple(plain["request_inputs"]),
        }
        return BenchReport(**{**plain, **lists})


def batch_text(rows: int, requests: int) -> str:
    """Returns a batch for people: 64, or 1x200 for a request of 200 candidates."""
    return f"{requests}x{rows // requests}" if requests else str(rows)


def short_names(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Returns paths without the folder they share, if they are different ones."""
    if len(set(paths)) < 2:
        return tuple(path.rstrip("/").rpartition("/")[2] for path in paths)
    return tuple(relpath(path, commonpath(paths)) for path in paths)
