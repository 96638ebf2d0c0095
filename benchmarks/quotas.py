"""Lookups under CPU quotas, with as many threads as there are processors and as fusion takes.

`python -m benchmarks.quotas` needs the right to make control groups. Both sides of a quota are
processes in the same group, which take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import quantiles

from benchmarks.control_groups import Begin, limited_processors

QUOTAS = (1, 2)
BATCHES = (512, 4096)
ROUNDS, CALLS = 20, 40
_COLUMNS, _IDS, _DIM, _ROWS = 26, 3, 16, 10_000


def main() -> int:
    """The command; returns its exit status."""
    if sys.argv[1:] == ["worker"]:
        work()
        return 0
    print("quota  batch  threads  p50 ms  p99 ms")
    for quota in QUOTAS:
        with limited_processors(quota) as enter:
            if enter is None:
                print("there is no right to make control groups", file=sys.stderr)
                return 1
            every = str(len(os.sched_getaffinity(0)))
            sides = [_start({"FUSION_NUM_THREADS": every}, enter), _start({}, enter)]
            threads = [_answer(side) for side in sides]
            for batch in BATCHES:
                times: list[list[float]] = [[], []]
                for number in range(2 * ROUNDS):
                    turn = (number + number // 2) % 2  # neither is always the first of two
                    times[turn] += _measured(sides[turn], batch)
                for count, some in zip(threads, times, strict=True):
                    cuts = quantiles(some, n=100)
                    print(f"{quota:5}  {batch:5}  {count:>7}  {cuts[49]:6.2f}  {cuts[98]:6.2f}")
            for side in sides:
                side.communicate()
    return 0


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
            times.append(1e3 * (time.perf_counter() - begun))
        print(*times, flush=True)


def _start(settings: dict[str, str], enter: Begin) -> subprocess.Popen[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **settings}
    if not settings:
        environment.pop("FUSION_NUM_THREADS", None)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.quotas", "worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=enter,  # noqa: PLW1509, this process has one thread
    )


def _answer(side: subprocess.Popen[str]) -> str:
    assert side.stdout is not None
    return side.stdout.readline().strip()


def _measured(side: subprocess.Popen[str], batch: int) -> list[float]:
    """Milliseconds of calls."""
    assert side.stdin is not None
    side.stdin.write(f"{batch}\n")
    side.stdin.flush()
    return [float(text) for text in _answer(side).split()]


if __name__ == "__main__":
    sys.exit(main())
