"""Threads that trace, run and discard functions with fusion on: `python -m tests.soak.functions`.

TensorFlow then calls fusion from all threads at once, while others hold Python's lock and
TensorFlow's. Every result is compared, bit by bit, with that of stock TensorFlow.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from tests.soak.jobs import Job
from tests.soak.threads import in_threads, report

v1 = tf.compat.v1

_ROWS, _DIM, _BATCH, _LONGEST = 40, 6, 10, 12
#: Who has not ended after so many seconds never will: their stacks are printed.
_DEADLOCK = 900


@dataclass(frozen=True)
class Lookup:
    """One column with numbers of its own."""

    seed: int

    @property
    def table(self) -> Any:
        return np.random.default_rng(self.seed).normal(size=(_ROWS, _DIM)).astype(np.float32)

    @property
    def ids(self) -> Any:
        """Indices, values and dense shape."""
        rng = np.random.default_rng([self.seed, 1])
        indices = np.argwhere(rng.random((_BATCH, _LONGEST)) < 0.3).astype(np.int64)
        return indices, rng.integers(-2, _ROWS, len(indices)), (_BATCH, _LONGEST)

    def stock(self, table: Any, ids: Any) -> Any:
        combiner = ("mean", "sum", "sqrtn")[self.seed % 3]
        default = (None, 3)[self.seed % 2]
        return v1.nn.safe_embedding_lookup_sparse(table, ids, None, combiner, default)

    @property
    def expected(self) -> bytes:
        """What eager stock ops give, which fusion never sees."""
        return _bits(self.stock(tf.constant(self.table), tf.SparseTensor(*self.ids)))


def in_function(lookup: Lookup) -> Any:
    table = tf.Variable(lookup.table)
    return tf.function(lambda ids: lookup.stock(table, ids))(tf.SparseTensor(*lookup.ids))


def in_pipeline(lookup: Lookup) -> Any:
    table = tf.Variable(lookup.table)
    batches = tf.data.Dataset.from_tensors(tf.SparseTensor(*lookup.ids))
    (output,) = batches.map(lambda ids: lookup.stock(table, ids), num_parallel_calls=2)
    return output


def in_session(lookup: Lookup) -> Any:
    with tf.Graph().as_default():
        output, feeds = _v1_column(lookup)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return session.run(output, feeds)


def in_shared_session(lookups: list[Lookup]) -> Callable[[Lookup], Any]:
    """All columns in one graph and one session, which optimizes it for each column anew."""
    with tf.Graph().as_default():
        columns = {lookup: _v1_column(lookup) for lookup in lookups}
        session = v1.Session()
        session.run(v1.global_variables_initializer())
    return lambda lookup: session.run(*columns[lookup])


def _v1_column(lookup: Lookup) -> tuple[Any, dict[Any, Any]]:
    name = f"table{lookup.seed}"
    table = v1.get_variable(name, initializer=lookup.table, use_resource=lookup.seed % 5 > 0)
    ids = v1.sparse_placeholder(tf.int64, [None, None])
    return lookup.stock(table, ids), {ids: v1.SparseTensorValue(*lookup.ids)}


def _bits(values: Any) -> bytes:
    return np.asarray(values).tobytes()


def jobs(count: int) -> list[Job]:
    """So many jobs, of all kinds in turn."""
    lookups = [Lookup(seed) for seed in range(count)]
    kinds = {
        "function": in_function,
        "pipeline": in_pipeline,
        "session": in_session,
        "shared session": in_shared_session(lookups[3::4]),
    }

    def job(lookup: Lookup, kind: str) -> Job:
        expected = (lookup.expected,)

        def run() -> tuple[bytes, ...]:
            found = (_bits(kinds[kind](lookup)),)
            if lookup.seed % 10 == 0:
                gc.collect()  # discards functions, whose graphs are cycles
            return found

        return Job(kind, f"seed {lookup.seed}", 1.0, run, expected)

    return [job(*pair) for pair in zip(lookups, itertools.cycle(kinds))]


def main() -> int:
    """The command line; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.functions", description=__doc__)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--functions", type=int, default=500, help="of all threads together")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(_DEADLOCK, exit=True)
    todo = jobs(options.functions)
    start = time.monotonic()
    with fusion.fused():
        tally = in_threads(options.threads, lambda place: todo[place :: options.threads])
    stats = fusion.stats()
    if stats.failures:
        tally.wrong.append(f"fusion failed {stats.failures} times")
    if stats.columns_fused != len(todo):
        tally.wrong.append(f"{stats.columns_fused} columns fused, not {len(todo)}")
    wrong = report(f"{options.threads} that trace", tally, time.monotonic() - start)
    print(f"functions: {'FAILED' if wrong else 'passed'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
