"""Lookups under CPU quotas, with as many threads as there are processors and as fusion takes.

Both sides of a quota are processes in the same control group, which take turns; to make it needs
the right to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

from benchmarks.case import Key, Row
from benchmarks.measure import percentiles
from benchmarks.processes import limited_processors, process

BATCHES = (512, 4096)
CALLS = 40
_COLUMNS, _IDS, _DIM, _ROWS = 26, 3, 16, 10_000


def measure(quota: float, rounds: int) -> Iterator[Row]:
    """Yields milliseconds of calls, by the number of threads.

    Args:
        quota: processors that a process may keep busy.
        rounds: turns of each side, of 40 calls each.

    Raises:
        PermissionError: there is no right to make control groups.
    """
    settings = {"the processors": str(len(os.sched_getaffinity(0))), "as fusion takes": None}
    with limited_processors(quota) as enter, ExitStack() as stack:
        if enter is None:
            raise PermissionError("there is no right to make control groups")
        sides = {
            name: stack.enter_context(process(enter, FUSION_NUM_THREADS=count))
            for name, count in settings.items()
        }
        threads = {name: call(_threads) for name, call in sides.items()}
        for batch in BATCHES:
            times: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(rounds):
                for name in [*sides][:: -1 if number % 2 else 1]:
                    times[name] += sides[name](_seconds, batch)
            for name, found in times.items():
                key: Key = {"quota": quota, "batch": batch, "threads": f"{threads[name]}, {name}"}
                yield Row(key, percentiles(found))


@cache
def _calls() -> dict[int, Callable[[], Any]]:
    """Calls of the model of a process, by batch, after the first of each."""
    import numpy as np
    import tensorflow as tf

    import fusion

    rng = np.random.default_rng(0)
    tables = [tf.Variable(tf.random.stateless_normal([_ROWS, _DIM], [1, 2]))] * _COLUMNS

    @tf.function
    def model(*ids: tf.SparseTensor) -> tf.Tensor:
        return tf.concat([*map(tf.nn.safe_embedding_lookup_sparse, tables, ids)], 1)

    def called(batch: int) -> Callable[[], Any]:
        drawn = (rng.integers(1, _ROWS, (batch, _IDS)) for _ in range(_COLUMNS))
        inputs = [*map(tf.sparse.from_dense, drawn)]
        function = model.get_concrete_function(*inputs)
        function(*inputs)
        return lambda: function(*inputs)

    fusion.enable()
    return {batch: called(batch) for batch in BATCHES}


def _threads() -> int:
    """How many there are, once the model has been called."""
    from fusion.runtime.threads import pool

    _calls()
    return pool.thread_count()


def _seconds(batch: int) -> list[float]:
    """Those of some calls."""
    times = list[float]()
    for _ in range(CALLS):
        begun = time.perf_counter()
        _calls()[batch]()
        times.append(time.perf_counter() - begun)
    return times
