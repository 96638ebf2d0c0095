"""What fusion costs or must not cost besides time in the graph: start-up, memory, many clients."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Row
from benchmarks.lookups.batch import draw_batch, draw_tables
from benchmarks.lookups.catalog import WORKLOADS
from benchmarks.lookups.draws import Draw
from benchmarks.lookups.tensorflow_side import TensorFlowSide, Way
from benchmarks.lookups.workloads import Column, Program
from benchmarks.measure import peak
from fusion.saved_model.bench.timing import run_clients

_ROOT = Path(__file__).resolve().parent.parent
_CLIENTS = 8
_MIB = 2.0**20

_START = """
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
start = time.perf_counter()
import tensorflow as tf
if {fused}:
    import fusion
    fusion.enable()
tables = [tf.Variable(tf.ones([1000, 16])) for _ in range(26)]
ids = tf.sparse.from_dense(tf.constant([[1, 2, 3], [4, 5, 0]], tf.int64))
@tf.function
def look_up(ids):
    found = [tf.nn.safe_embedding_lookup_sparse(table, ids) for table in tables]
    return tf.concat(found, 1)
look_up(ids).numpy()
print(time.perf_counter() - start)
if {fused}:
    assert fusion.stats().columns_fused == 26, fusion.stats()
"""


def startup(starts: int) -> Iterator[Row]:
    """Seconds until the first lookups of 26 columns are done in a new process.

    That is importing TensorFlow, making tables, tracing, optimizing and running; with fusion also
    importing it, loading the kernels and rewriting the graph.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    _seconds_to_start(True)
    for number in range(2 * starts):
        times[bool(number % 2)].append(_seconds_to_start(bool(number % 2)))
    stock, fused = (statistics.median(times[is_fused]) for is_fused in (False, True))
    values = {"stock, s": stock, "fusion, s": fused, "longer, s": fused - stock}
    yield Row({"": "import to first result"}, values, most={"longer, s": 0.6})


def _seconds_to_start(fused: bool) -> float:
    command = [sys.executable, "-W", "ignore", "-c", _START.format(fused=fused)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a new process failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def memory(mebibytes: int) -> Iterator[Row]:
    """Growth of the process's peak of memory while lookups in a large table run."""
    program = Program("memory", (Column(mebibytes << 12, 64, ids=(1, 10)),), (4096,))
    batch = draw_batch(program, 4096, Draw("uniform"))
    tables = draw_tables(program)
    side = TensorFlowSide(program, tables, batch, "fusion")
    del tables
    shape, grown = peak(lambda: [side.call().shape for _ in range(20)][-1])
    output = shape.num_elements() * 4 / _MIB
    values = {"output, MiB": output, "growth, MiB": grown / _MIB}
    yield Row({"table, MiB": mebibytes}, values, most={"growth, MiB": output + 0.01 * mebibytes})


def concurrency(seconds: float) -> Iterator[Row]:
    """Calls per second of 8 threads together over those of one, multihot26."""
    program = WORKLOADS["multihot26"].programs[0]
    tables, batch = draw_tables(program), draw_batch(program, 64, Draw())
    ways: tuple[Way, ...] = ("stock", "fusion")
    sides = {way: TensorFlowSide(program, tables, batch, way) for way in ways}
    for size in (64, 512):
        for name, side in sides.items():
            side.load(draw_batch(program, size, Draw()))
            one, many = (calls_per_second(side.call, n, seconds) for n in (1, _CLIENTS))
            values = {"one client, calls/s": one, f"{_CLIENTS} clients": many, "ratio": many / one}
            least = {"ratio": 1.0} if name == "fusion" else {}
            yield Row({"side": name, "batch": size}, values, least=least)


def calls_per_second(call: Callable[[], Any], count: int, seconds: float) -> float:
    """The best of three: calls per second of so many threads together."""
    return max(run_clients(call, count, seconds / 3).calls_per_s for _ in range(3))
