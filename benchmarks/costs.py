"""What fusion costs or must not cost besides time in the graph: start-up, memory, many clients."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusion.saved_model.bench.timing import run_clients

_ROOT = Path(__file__).resolve().parent.parent
_CLIENTS = 8

Progress = Callable[[str], None]

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


@dataclasses.dataclass(frozen=True)
class Cost:
    """A number, and what it may be.

    Attributes:
        name: what it is.
        value: the number.
        unit: of the number.
        most: what it may be at most, or None.
        least: what it must be at least, or None.
    """

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None


def startup(quick: bool, progress: Progress) -> list[Cost]:
    """Seconds until the first lookups of 26 columns are done in a new process, kernels compiled.

    That is importing TensorFlow, making tables, tracing, optimizing and running; with fusion also
    importing it, loading the kernels and rewriting the graph.
    """
    tries = 2 if quick else 5
    times: dict[bool, list[float]] = {False: [], True: []}
    _seconds_to_start(True)
    for number in range(tries):
        for fused in (False, True):
            times[fused].append(_seconds_to_start(fused))
        progress(f"start {number + 1} of {tries}")
    stock, fused_s = statistics.median(times[False]), statistics.median(times[True])
    return [
        Cost("stock TensorFlow, import to first result", stock, "s"),
        Cost("fusion, import to first result", fused_s, "s"),
        Cost("over TensorFlow's", fused_s - stock, "s", most=0.6),
    ]


def _seconds_to_start(fused: bool) -> float:
    program = _START.format(fused=fused)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a new process failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def memory(quick: bool, progress: Progress) -> list[Cost]:
    """Growth of this process's largest memory while lookups in a large table run."""
    from benchmarks.batch import draw_batch, draw_tables
    from benchmarks.inputs import Draw
    from benchmarks.tensorflow_side import TensorFlowSide
    from benchmarks.workloads import Column, Program

    table_bytes = 2**28 if quick else 2**30
    column = Column(table_bytes // 256, 64, ids=(1, 10))
    program = Program("memory", (column,), (4096,))
    batch = draw_batch(program, 4096, Draw("uniform"))
    tables = draw_tables(program)
    side = TensorFlowSide(program, tables, batch, "fusion")
    del tables
    progress("table made")
    _reset_peak()
    before = _status_bytes("VmRSS")
    output_bytes = 0
    for _ in range(20):
        output_bytes = side.call().shape.num_elements() * 4
    grown = _status_bytes("VmHWM") - before
    mib = 2.0**20
    return [
        Cost("table", table_bytes / mib, "MiB"),
        Cost("output", output_bytes / mib, "MiB"),
        Cost(
            "growth of the peak during calls",
            grown / mib,
            "MiB",
            most=(output_bytes + 0.01 * table_bytes) / mib,
        ),
    ]


def _reset_peak() -> None:
    """Makes the process's largest memory so far what it has now."""
    Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def clients(quick: bool, progress: Progress) -> list[Cost]:
    """Calls per second of 8 threads together over those of one, multihot26; stock and fusion."""
    from benchmarks.batch import draw_batch, draw_tables
    from benchmarks.catalog import WORKLOADS
    from benchmarks.inputs import Draw
    from benchmarks.tensorflow_side import TensorFlowSide

    program = WORKLOADS["multihot26"].programs[0]
    tables = draw_tables(program)
    seconds = 0.3 if quick else 2.0
    found = []
    batch = draw_batch(program, 64, Draw())
    sides = {
        "stock": TensorFlowSide(program, tables, batch, "stock"),
        "fusion": TensorFlowSide(program, tables, batch, "fusion"),
    }
    for size in (64, 512):
        rates: dict[tuple[str, int], float] = {}
        for name, side in sides.items():
            side.load(draw_batch(program, size, Draw()))
            for count in (1, _CLIENTS):
                rates[name, count] = _calls_per_second(side.call, count, seconds)
                title = f"{name}, batch {size}, {count} client{'s' * (count > 1)}"
                found.append(Cost(title, rates[name, count], "calls/s"))
                progress(title)
            ratio = rates[name, _CLIENTS] / rates[name, 1]
            least = 1.0 if name == "fusion" else None
            title = f"{name}, batch {size}, {_CLIENTS} clients over one"
            found.append(Cost(title, ratio, "x", least=least))
    return found


def _calls_per_second(call: Callable[[], Any], count: int, seconds: float) -> float:
    """The best of three: calls per second of so many threads together."""
    return max(run_clients(call, count, seconds / 3).calls_per_s for _ in range(3))


def saved_models(quick: bool, progress: Progress) -> list[Cost]:
    """Calls per second of rewritten SavedModels over those of the originals, side by side.

    Of the whole model and of its embeddings alone, in the graph and end to end; see `fusion bench`.
    """
    from benchmarks.saved_models import ratios

    return [Cost(one.title, one.median, "x", least=one.least) for one in ratios(quick, progress)]


COSTS: dict[str, Callable[[bool, Progress], list[Cost]]] = {
    "startup": startup,
    "memory": memory,
    "clients": clients,
    "saved-models": saved_models,
}
"""All of these measurements, by name."""


def measure(name: str, quick: bool, progress: Progress) -> dict[str, Any]:
    """One of `COSTS`, as `worker.measure` gives its results."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    about = (COSTS[name].__doc__ or "").strip().splitlines()[0]
    found = COSTS[name](quick, progress)
    return {"about": about, "costs": [dataclasses.asdict(cost) for cost in found]}
