"""Latency second by second, from the first answer of a model on: what a server's clients see.

A mean over a minute hides seconds in which memory is still being prepared, threads are started or
tables are replaced. So p50 and p99 are taken of each second by itself: of a model that was just
loaded, and of a second one that takes its place.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import fusion
from benchmarks.case import Row
from benchmarks.lookups.draws import MISSING
from benchmarks.measure import percentiles

_COLUMNS, _ROWS, _DIM = 26, 1_250_000, 16
_BATCH, _MAX_IDS = 64, 5
_REQUESTS = 32
#: One model, and one that replaces it.
_VERSIONS = 2

Answer = Callable[[Any], npt.NDArray[np.float32]]
"""Takes one of `_draw_requests`, gives the embeddings side by side."""


class Call(NamedTuple):
    """When a call began, in seconds since the model's first answer, and how many it took."""

    begun: float
    seconds: float


def measure(side: str, clients: int, seconds: int, rate: float, scale: float) -> Iterator[Row]:
    """Serves the versions of the model, one after the other.

    Args:
        side: "stock" or "fusion".
        clients: threads that call. Of several each calls as soon as its last call is done.
        seconds: for which each version of the model is called.
        rate: calls per second of a single client.
        scale: by which the tables' rows are multiplied.

    Yields:
        What the calls of each second took; digests of what each version answers.

    Raises:
        RuntimeError: the fused side is not fused, or stock is.
        ValueError: a number is not positive.
    """
    for name, value in (("clients", clients), ("seconds", seconds), ("rate", rate)):
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
    rows = max(16, int(_ROWS * scale))
    requests = _draw_requests(rows)
    for version in range(1, _VERSIONS + 1):
        answer = _model(side == "fusion", rows, version, requests[0])
        calls = _serve(answer, requests, clients, seconds, rate)
        digest = hashlib.sha256(b"".join(answer(one).tobytes() for one in requests)).hexdigest()
        key = {"clients": clients, "version": version}
        for second, values in enumerate(by_second(calls, seconds)):
            found = {f"{side} {name}": value for name, value in values.items()}
            yield Row({**key, "second": second}, found, answers=digest)
        # Before the next one's tables are made: there is memory for one version.
        del answer
        gc.collect()


def by_second(calls: Sequence[Call], seconds: int) -> Iterator[dict[str, float]]:
    """Yields the number of calls that began in each second, their p50 and p99 if there are any."""
    for second in range(seconds):
        times = [one.seconds for one in calls if second <= one.begun < second + 1]
        yield {"calls": len(times), **(percentiles(times) if times else {})}


def _draw_requests(rows: int) -> list[npt.NDArray[np.int64]]:
    """Batches of ids side by side, int64 [batch, columns * most ids], `MISSING` where none is."""
    rng = np.random.default_rng(0)
    shape = (_REQUESTS, _BATCH, _COLUMNS, _MAX_IDS)
    lengths = rng.integers(0, _MAX_IDS + 1, (*shape[:-1], 1))
    ids = np.where(np.arange(_MAX_IDS) < lengths, rng.integers(0, rows, shape), MISSING)
    return list(ids.reshape(_REQUESTS, _BATCH, -1))


def _model(is_fused: bool, rows: int, version: int, request: Any) -> Answer:
    """A model with tables of its own, which has answered a first request."""
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
    with fusion.fused() if is_fused else contextlib.nullcontext():
        spec = tf.TensorSpec([None, _COLUMNS * _MAX_IDS], tf.int64)
        function = tf.function(look_up, input_signature=[spec], autograph=False)
        function(request)
    columns = fusion.stats().columns_fused - before
    if columns != (_COLUMNS if is_fused else 0):
        raise RuntimeError(f"{columns} of {_COLUMNS} columns are fused\n{fusion.stats()}")
    return lambda ids: function(ids).numpy()


def _serve(
    answer: Answer, requests: Sequence[Any], clients: int, seconds: int, rate: float
) -> list[Call]:
    """Calls from all clients until the time is over."""
    together = threading.Barrier(clients)
    start = time.perf_counter()

    def client(number: int) -> list[Call]:
        together.wait()
        found: list[Call] = []
        due, place = start, number
        while (now := time.perf_counter()) - start < seconds:
            if clients == 1:
                due += 1.0 / rate
                time.sleep(max(0.0, due - now))
            begun = time.perf_counter()
            answer(requests[place % len(requests)])
            found.append(Call(begun - start, time.perf_counter() - begun))
            place += 1
        return found

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, number) for number in range(clients)]
        return [call for one in running for call in one.result()]
