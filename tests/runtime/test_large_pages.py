from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

#: A process that looks rows of a table of 64 MiB up until large pages hold most of it, or for a
#: while. It prints the bytes in large pages and whether the rows were right all the time.
_PROGRAM = """
import re, time
import numpy as np
import tensorflow as tf
from fusion import ops
from tests.ops.embedding_columns import attrs, NO_IDS

table = tf.random.stateless_uniform([1 << 20, 16], [1, 2])
rows = np.arange(1000) * 1000
expected = table.numpy()[rows]

def large_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * int(re.search(r"AnonHugePages: +([0-9]+)", file.read())[1])

before, is_right, end = large_bytes(), True, time.monotonic() + {seconds}
while large_bytes() - before < 50 << 20 and time.monotonic() < end:
    found = ops.fused_embedding_lookup(
        table=table, ids=rows[:, None], entry_rows=NO_IDS, dense_shape=NO_IDS,
        weights=tf.zeros([0]), **attrs(form="dense", dim=16)
    )
    is_right = is_right and np.array_equal(found, expected)
    time.sleep(0.01)
print(large_bytes() - before, is_right)
"""


def _large_bytes(seconds: int, **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(seconds=seconds)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    number, is_right = done.stdout.split()
    assert is_right == "True"
    return int(number)


@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(), reason="no large pages here"
)
def test_an_idle_thread_gives_tables_large_pages():
    assert _large_bytes(60, FUSION_NUM_THREADS="2") >= 50 << 20


@pytest.mark.parametrize(
    "environment",
    [
        {"FUSION_NUM_THREADS": "2", "FUSION_LARGE_PAGES": "0"},
        {"FUSION_NUM_THREADS": "1"},
    ],
)
def test_pages_stay_as_they_are(environment):
    assert _large_bytes(2, **environment) < 16 << 20
