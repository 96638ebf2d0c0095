from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fusion.runtime.threads import pool

#: A process whose kernels have had help, and a child of it, in which there is none.
_FORK = """
import os, sys
import numpy as np
from fusion import ops
from tests.ops.embedding_columns import attrs, NO_IDS

table = np.arange(40, dtype=np.float32).reshape(10, 4)
ids = np.arange(200_000)[:, None] % 10

def run():
    return ops.fused_embedding_lookup(
        table=table, ids=ids, entry_rows=NO_IDS, dense_shape=NO_IDS, weights=table[:0, 0],
        **attrs(form="dense", dim=4)
    ).numpy()

def is_right():
    return all(np.array_equal(run(), table[ids[:, 0]]) for _ in range(20))

assert is_right()
child = os.fork()
if child == 0:
    os._exit(0 if is_right() else 1)
assert is_right()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_number_of_threads(monkeypatch):
    monkeypatch.delenv(pool.THREADS_VARIABLE, raising=False)
    assert 1 <= pool.thread_count() <= len(os.sched_getaffinity(0))
    monkeypatch.setenv(pool.THREADS_VARIABLE, "3")
    assert pool.thread_count() == 3
    monkeypatch.setenv(pool.THREADS_VARIABLE, "1")
    assert pool.pool_address() == 0


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_number_of_threads_that_is_none(monkeypatch, text):
    monkeypatch.setenv(pool.THREADS_VARIABLE, text)
    with pytest.raises(ValueError, match="FUSION_NUM_THREADS must be a positive number"):
        pool.thread_count()


@pytest.mark.parametrize("count", ["1", "4"])
def test_kernels_go_on_after_a_fork(count):
    environment = os.environ | {pool.THREADS_VARIABLE: count}
    command = [sys.executable, "-c", _FORK]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
