"""Dynamic batching: requests that come at the same time are computed in one call of the model."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.serving.messages import Arrays

Results = dict[str, NDArray[Any]]
Run = Callable[[Arrays], Results]


@dataclass(frozen=True)
class _Request:
    inputs: Arrays
    rows: int
    result: Future[Results] = field(default_factory=Future)

    @property
    def kind(self) -> Hashable:
        """Requests of the same one can be put together."""
        return tuple((name, a.dtype.str, a.shape[1:]) for name, a in sorted(self.inputs.items()))


class Batcher:
    """Calls a model with the rows of several requests, and gives each its own rows of the results.

    The first request waits up to `max_wait` seconds for others, until `max_rows` rows are together.
    A thread of the batcher's calls the model, one call at a time. If a call of several requests
    fails, each is computed alone, so that those which cause no error get their results.

    The rows of the results must not depend on other rows, as those of most models do not.
    """

    def __init__(self, run: Run, max_rows: int, max_wait: float) -> None:
        self._run, self._max_rows, self._max_wait = run, max_rows, max_wait
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._left_over: _Request | None = None
        self._closed = False
        self._is_open, self._lock = True, threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, inputs: Arrays, rows: int) -> Future[Results]:
        """Returns what becomes the results; it is cancelled if the batcher is closed.

        Args:
            inputs: arrays of `rows` rows each.
            rows: how many.

        A request that the caller cancels in time is not computed.
        """
        request = _Request(inputs, rows)
        with self._lock:
            if self._is_open:
                self._waiting.put(request)
            else:
                request.result.cancel()
        return request.result

    def close(self) -> None:
        """Computes what is waiting and stops."""
        with self._lock:
            self._is_open = False
            self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while batch := self._next_batch():
            wanted = [one for one in batch if one.result.set_running_or_notify_cancel()]
            if wanted:
                self._compute(wanted)

    def _next_batch(self) -> list[_Request]:
        """Waits for requests; returns none after the last."""
        first, self._left_over = self._left_over, None
        if first is None:
            first = None if self._closed else self._waiting.get()
        if first is None:
            return []
        batch, rows = [first], first.rows
        deadline = time.monotonic() + self._max_wait
        while rows < self._max_rows and not self._closed:
            try:
                request = self._waiting.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                self._closed = True
            elif rows + request.rows > self._max_rows or request.kind != first.kind:
                self._left_over = request
                break
            else:
                batch.append(request)
                rows += request.rows
        return batch

    def _compute(self, batch: Sequence[_Request]) -> None:
        try:
            results = self._together(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for request in batch:
                self._compute([request])
            return
        for request, result in zip(batch, results, strict=True):
            request.result.set_result(result)

    def _together(self, batch: Sequence[_Request]) -> list[Results]:
        """Computes requests in one call; returns the results of each."""
        if len(batch) == 1:
            return [self._run(batch[0].inputs)]
        joined = {
            name: np.concatenate([request.inputs[name] for request in batch])
            for name in batch[0].inputs
        }
        outputs = self._run(joined)
        rows = [request.rows for request in batch]
        for name, array in outputs.items():
            if not array.ndim or len(array) != sum(rows):
                raise ValueError(f"output {name!r} has {array.shape}, not {sum(rows)} rows")
        ends = np.cumsum(rows)
        return [
            {name: array[end - count : end] for name, array in outputs.items()}
            for count, end in zip(rows, ends, strict=True)
        ]
