"""Latency second by second, from the first answer of a model on: what a server's clients see.

A mean over a minute hides seconds in which memory is still being prepared, threads are started or
tables are replaced. So p50 and p99 are taken of each second by itself: of a model that was just
loaded, and of a second one that takes its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.inputs import MISSING
from fusion.runtime.machine import busy_elsewhere
from fusion.saved_model.bench.timing import spread

Side = Literal["stock", "fusion"]
SIDES: tuple[Side, ...] = ("stock", "fusion")

ABOUT = (
    "26 columns of dimension 16 over tables of 80 MB, 0 to 5 uniform ids per row, batch 64: p50 "
    "and p99 of the calls that begin in each second since a model's first answer."
)

_COLUMNS, _ROWS, _DIM = 26, 1_250_000, 16
_BATCH, _MOST_IDS = 64, 5
_REQUESTS = 32
#: One model, and one that replaces it.
VERSIONS = 2

Progress = Callable[[str], None]
Answer = Callable[[Any], npt.NDArray[np.float32]]
"""Takes one of `_draw_requests`, gives the embeddings side by side."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What one process serves.

    Attributes:
        side: whose lookups.
        clients: threads that call. Of several each calls as soon as its last call is done.
        seconds: how long each version of the model is called.
        rate: calls per second of a single client.
        scale: by which the tables' rows are multiplied.

    Raises:
        ValueError: a number that is not positive.
    """

    side: Side
    clients: int = 1
    seconds: int = 12
    rate: float = 200.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("clients", "seconds", "rate", "scale"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be positive, got {value}")


@dataclasses.dataclass(frozen=True)
class Call:
    """When a call began, in seconds since the model's first answer, and how many it took."""

    begun: float
    seconds: float


def measure(load: Load, progress: Progress) -> dict[str, Any]:
    """Serves the versions of the model, one after the other.

    Returns:
        "seconds": what `by_second` gives, with the "version" of the model; "answers": a hash of
        what both versions answer, the same for all sides; "busy_elsewhere": cores.

    Raises:
        RuntimeError: the fused side is not fused, or stock is.
    """
    others = busy_elsewhere()
    rows = max(16, int(_ROWS * load.scale))
    requests = _draw_requests(rows)
    digest = hashlib.sha256()
    found: list[dict[str, Any]] = []
    for version in range(VERSIONS):
        answer = _model(load.side, rows, version, requests[0])
        calls = _serve(answer, requests, load)
        found += [{"version": version, **one} for one in by_second(calls, load.seconds)]
        for request in requests:
            digest.update(answer(request).tobytes())
        # Before the next one's tables are made: there is memory for one version.
        del answer
        gc.collect()
        progress(f"version {version + 1} of {VERSIONS}")
    return {"seconds": found, "answers": digest.hexdigest(), "busy_elsewhere": others()}


def by_second(calls: Sequence[Call], seconds: int) -> list[dict[str, Any]]:
    """The number of calls that began in each second, and their p50 and p99.

    Percentiles are in milliseconds, None of a second in which no call began.
    """
    found = []
    for second in range(seconds):
        ms = [one.seconds * 1e3 for one in calls if second <= one.begun < second + 1]
        p50, p99 = np.percentile(ms, [50, 99]).tolist() if ms else (None, None)
        found.append({"second": second, "calls": len(ms), "p50_ms": p50, "p99_ms": p99})
    return found


def _draw_requests(rows: int) -> list[npt.NDArray[np.int64]]:
    """Batches of ids side by side, int64 [batch, columns * most ids], `MISSING` where none is."""
    rng = np.random.default_rng(0)
    shape = (_REQUESTS, _BATCH, _COLUMNS, _MOST_IDS)
    lengths = rng.integers(0, _MOST_IDS + 1, (*shape[:-1], 1))
    ids = np.where(np.arange(_MOST_IDS) < lengths, rng.integers(0, rows, shape), MISSING)
    return list(ids.reshape(_REQUESTS, _BATCH, -1))


def _model(side: Side, rows: int, version: int, request: Any) -> Answer:
    """A model with tables of its own, which has answered a first request."""
    import tensorflow as tf

    import fusion

    # Not NumPy's: it asks for large pages, which tables that are read from files do not have.
    draw = tf.random.stateless_uniform
    tables = [tf.Variable(draw([rows, _DIM], [version, k], -1, 1)) for k in range(_COLUMNS)]

    def look_up(ids: tf.Tensor) -> tf.Tensor:
        found = []
        for table, part in zip(tables, tf.split(ids, _COLUMNS, 1), strict=True):
            indices = tf.where(tf.not_equal(part, MISSING))
            bags = tf.SparseTensor(indices, tf.gather_nd(part, indices), tf.shape(part, tf.int64))
            found.append(tf.nn.safe_embedding_lookup_sparse(table, bags, combiner="mean"))
        return tf.concat(found, 1)

    before = fusion.stats().columns_fused
    with fusion.fused() if side == "fusion" else contextlib.nullcontext():
        spec = tf.TensorSpec([None, _COLUMNS * _MOST_IDS], tf.int64)
        function = tf.function(look_up, input_signature=[spec], autograph=False)
        function(request)
    columns = fusion.stats().columns_fused - before
    if columns != (_COLUMNS if side == "fusion" else 0):
        raise RuntimeError(f"{columns} columns of {side} are fused\n{fusion.stats()}")
    return lambda ids: function(ids).numpy()


def _serve(answer: Callable[[Any], object], requests: Sequence[Any], load: Load) -> list[Call]:
    """Calls from all clients until the time is over."""
    together = threading.Barrier(load.clients)
    start = time.perf_counter()

    def client(number: int) -> list[Call]:
        together.wait()
        found: list[Call] = []
        due, place = start, number
        while (now := time.perf_counter()) - start < load.seconds:
            if load.clients == 1:
                due += 1.0 / load.rate
                time.sleep(max(0.0, due - now))
            begun = time.perf_counter()
            answer(requests[place % len(requests)])
            found.append(Call(begun - start, time.perf_counter() - begun))
            place += 1
        return found

    with ThreadPoolExecutor(load.clients) as pool:
        running = [pool.submit(client, number) for number in range(load.clients)]
        return [call for one in running for call in one.result()]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        clients: numbers of clients, one after the other.
        processes: of each side for each number of clients, in turn.
        seconds: as in `Load`, like the others.
    """

    clients: tuple[int, ...] = (1, 8)
    processes: int = 1
    seconds: int = 12
    rate: float = 200.0
    scale: float = 1.0

    def loads(self, clients: int) -> list[Load]:
        """What the processes serve, in their order."""
        sides = SIDES * self.processes
        return [Load(side, clients, self.seconds, self.rate, self.scale) for side in sides]


def run(options: Options, serve: Callable[[Load], dict[str, Any]]) -> dict[str, Any]:
    """Measures all numbers of clients.

    Args:
        options: how to run.
        serve: gives what `measure` gives in a new process.

    Returns:
        "latency": for each number of clients the seconds of each side, each with the spread over
        the processes of the number of calls, p50 and p99; and what else a result has.

    Raises:
        RuntimeError: the answers of fusion are not those of stock TensorFlow.
    """
    cases, busy, answers = [], [], set()
    for clients in options.clients:
        sides: dict[str, list[list[dict[str, Any]]]] = {side: [] for side in SIDES}
        for load in options.loads(clients):
            found = serve(load)
            answers.add(found["answers"])
            if len(answers) > 1:
                raise RuntimeError("the answers of fusion are not those of stock TensorFlow")
            busy.append(found["busy_elsewhere"])
            sides[load.side].append(found["seconds"])
        combined = {side: _combine(processes) for side, processes in sides.items()}
        cases.append({"clients": clients, "sides": combined})
    facts = {"quick": False, "scale": options.scale, "rate": options.rate}
    return {**facts, "busy_elsewhere": spread(busy), "latency": cases}


def _combine(processes: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The seconds of one side: spreads over its processes, None where none had a call."""
    seconds = []
    for same in zip(*processes, strict=True):
        found = {key: same[0][key] for key in ("version", "second")}
        for key in ("calls", "p50_ms", "p99_ms"):
            values = [one[key] for one in same if one[key] is not None]
            found[key] = spread(values) if values else None
        seconds.append(found)
    return seconds
