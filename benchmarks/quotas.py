"""Lookups under CPU quotas, with as many threads as there are processors and as fusion takes.

Both sides of a quota are processes in the same control group, which take turns; to make it needs
the right to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.case import Key, Row
from benchmarks.control_groups import Begin, limited_processors
from benchmarks.measure import percentiles

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
    with limited_processors(quota) as enter:
        if enter is None:
            raise PermissionError("there is no right to make control groups")
        every = str(len(os.sched_getaffinity(0)))
        settings = {"the processors": {"FUSION_NUM_THREADS": every}, "as fusion takes": {}}
        sides = {name: _start(one, enter) for name, one in settings.items()}
        threads = {name: _answer(side) for name, side in sides.items()}
        for batch in BATCHES:
            times: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(rounds):
                for name in [*sides][:: -1 if number % 2 else 1]:
                    times[name] += _measured(sides[name], batch)
            for name, found in times.items():
                key: Key = {"quota": quota, "batch": batch, "threads": f"{threads[name]}, {name}"}
                yield Row(key, percentiles(found))
        for side in sides.values():
            side.communicate()


def work() -> None:
    """Tells how many threads there are, then measures calls as the lines of the input ask for."""
    import numpy as np
    import tensorflow as tf

    import fusion
    from fusion.runtime.threads import pool

    rng = np.random.default_rng(0)
    tables = [tf.Variable(tf.random.stateless_normal([_ROWS, _DIM], [1, 2]))] * _COLUMNS

    @tf.function
    def model(*ids: tf.SparseTensor) -> tf.Tensor:
        return tf.concat([*map(tf.nn.safe_embedding_lookup_sparse, tables, ids)], 1)

    fusion.enable()
    inputs = {
        batch: [
            tf.sparse.from_dense(rng.integers(1, _ROWS, (batch, _IDS))) for _ in range(_COLUMNS)
        ]
        for batch in BATCHES
    }
    functions = {batch: model.get_concrete_function(*ids) for batch, ids in inputs.items()}
    for batch, function in functions.items():
        function(*inputs[batch])
    print(pool.thread_count(), flush=True)
    for line in sys.stdin:
        batch, times = int(line), list[float]()
        for _ in range(CALLS):
            begun = time.perf_counter()
            functions[batch](*inputs[batch])
            times.append(time.perf_counter() - begun)
        print(*times, flush=True)


def _start(settings: dict[str, str], enter: Begin) -> subprocess.Popen[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **settings}
    if not settings:
        environment.pop("FUSION_NUM_THREADS", None)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.quotas"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=enter,  # noqa: PLW1509, it writes to a file and takes no lock
    )


def _answer(side: subprocess.Popen[str]) -> str:
    assert side.stdout is not None
    return side.stdout.readline().strip()


def _measured(side: subprocess.Popen[str], batch: int) -> list[float]:
    """Seconds of calls."""
    assert side.stdin is not None
    side.stdin.write(f"{batch}\n")
    side.stdin.flush()
    return [float(text) for text in _answer(side).split()]


if __name__ == "__main__":
    work()
