"""A model whose tables are files, against the same model with variables, and stock.

python -m benchmarks.mapped [--gigabytes 8] [--repeats 3] [--seconds 10] [--out FOLDER]

Each measurement is a process of its own: `python -m benchmarks.mapped step NAME ARGUMENT ...`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.control_groups import limited

_TABLES, _DIM, _BATCH = 8, 64, 512
_LIMIT = 2 << 30
_MOST_SECONDS = 90


def measure(folder: Path, gigabytes: float, repeats: int) -> dict[str, Any]:
    """Makes the models, and measures each.

    Args:
        folder: for models; must have room for five times the tables.
        gigabytes: of the tables together.
        repeats: processes of each measurement.
    """
    rows = int(gigabytes * 1e9 / (4 * _DIM * _TABLES))
    _child("make", folder / "stock", rows)
    made = {way: _child("rewrite", folder / "stock", way, folder / way) for way in _WAYS}
    starts: dict[str, list[dict[str, Any]]] = {"stock": [], **{way: [] for way in _WAYS}}
    for _ in range(repeats):
        for way, found in starts.items():
            found.append(_child("start", folder / way, way))
    result: dict[str, Any] = {
        "tables_bytes": rows * 4 * _DIM * _TABLES,
        "rewrite": made,
        "split": _child("split", folder / "stock", folder / "split"),
        "start": starts,
        "shared": _shared(folder / "mapped"),
    }
    return result


_WAYS = ("variables", "mapped", "memory")


def warm(folder: Path, gigabytes: float, seconds: float) -> dict[str, Any]:
    """Measures lookups where all pages are in memory, all models in one process."""
    rows = int(gigabytes * 1e9 / (4 * _DIM * _TABLES))
    _child("make", folder / "stock", rows)
    for way in _WAYS:
        _child("rewrite", folder / "stock", way, folder / way)
    return _child("warm", folder, seconds)


def pages(folder: Path) -> dict[str, Any]:
    """Measures lookups where no pages are in memory, with memory for all tables and for half.

    And each as it is not chosen there.
    """
    size = 2 * _LIMIT
    _child("make", folder / "stock", size // (4 * _DIM * _TABLES))
    _child("rewrite", folder / "stock", "mapped", folder / "mapped")
    shutil.rmtree(folder / "stock")
    found: dict[str, Any] = {"tables_bytes": size, "limit_bytes": _LIMIT}
    for reads, mapped_bytes in _READS.items():
        model = folder / reads
        _child("advise", folder / "mapped", model, mapped_bytes)
        _forget_tables(model)
        found[f"all, {reads}"] = _child("calls", model, 2000, _MOST_SECONDS)
        _forget_tables(model)  # what is in memory already counts for whoever brought it there
        with limited(_LIMIT) as enter:
            if enter is not None:
                found[f"half, {reads}"] = _child("calls", model, 800, _MOST_SECONDS, before=enter)
    return found


#: How the system reads, and what the model says of its size to have it.
_READS = {"as chosen": "", "ahead": 0, "page by page": 1 << 60}


def report(found: dict[str, Any]) -> str:
    """What was measured, in Markdown."""
    from benchmarks.markdown import table as markdown

    lines = []
    for way, runs in found["start"].items():
        times = [run["first_s"] for run in runs]
        middle = statistics.median(times)
        spread = f"{middle:.2f} ({min(times):.2f} to {max(times):.2f})"
        memory = statistics.median(run["memory_mb"] for run in runs)
        lines.append((way, spread, f"{memory:,.0f}"))
    head = ("tables in", "s from loading to the first answer", "MB of memory then")
    parts = [markdown(head, lines)]
    shared = found["shared"]
    parts.append(
        f"Two processes that have looked all tables up: {shared['rss_mb']:,.0f} MB each, of which "
        f"{shared['pss_mb']:,.0f} MB if shared pages count by half."
    )
    made = {
        "fusion rewrite --tables mapped": found["rewrite"]["mapped"],
        "fusion split": found["split"],
    }
    for name, one in made.items():
        above = one["peak_mb"] - one["before_mb"]
        parts.append(f"`{name}`: {above:,.0f} MB above TensorFlow's own.")
    rows = [
        (
            way,
            "page by page" if each["is_random"] else "ahead",
            str(each["calls"]),
            *(f"{each[name]:.1f}" for name in ("seconds", "p50_ms", "p99_ms")),
        )
        for way, each in found["pages"].items()
        if isinstance(each, dict)
    ]
    columns = ("memory for", "reads", "calls", "s", "ms, p50 of the second half", "p99")
    parts.append(markdown(columns, rows))
    lines = [
        (batch, *(f"{times[way]:.3f}" for way in _WAYS))
        for batch, times in found["warm_ms"].items()
    ]
    parts.append(markdown(("batch, all pages warm", *(f"ms, {way}" for way in _WAYS)), lines))
    return "\n\n".join(parts)


def _forget_tables(model: Path) -> None:
    """Has the system keep nothing of a model's tables in memory, if nobody maps them."""
    for file in (model / "assets" / "tables").iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _child(step: str, *arguments: Any, before: Any = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.mapped", "step", step, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=before)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _shared(model: Path) -> dict[str, float]:
    """The memory of two processes at a time, which wait for each other."""
    command = [sys.executable, "-m", "benchmarks.mapped", "step", "share", str(model)]
    pipes = subprocess.PIPE
    both = [subprocess.Popen(command, stdin=pipes, stdout=pipes, text=True) for _ in range(2)]
    found = []
    for turn in range(2):  # all pages are there when the first of them looks
        for one in both:
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write("\n")
            one.stdin.flush()
            line = one.stdout.readline()
            found += [json.loads(line)] if turn else []
    for one in both:
        one.communicate("\n")
    return {key: statistics.mean(each[key] for each in found) for key in found[0]}


def _memory(*names: str) -> dict[str, float]:
    """MB of this process, as /proc tells them."""
    lines = Path("/proc/self/status").read_text() + Path("/proc/self/smaps_rollup").read_text()
    found = {}
    for line in lines.splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[name] = int(value.split()[0]) / 1000
    return found


def _make(path: str, rows: str) -> dict[str, Any]:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = [int(rows), _DIM]
            self.tables = [
                tf.Variable(tf.random.stateless_uniform(shape, [1, k]), name=f"table_{k}")
                for k in range(_TABLES)
            ]
            self.kernel = tf.Variable(tf.ones([_DIM * _TABLES, 1]), name="kernel")

        @tf.function(input_signature=[tf.TensorSpec([None, _TABLES], tf.int64)])
        def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
            found = [
                tf.nn.safe_embedding_lookup_sparse(
                    table, tf.RaggedTensor.from_tensor(ids[:, k : k + 1]).to_sparse()
                )
                for k, table in enumerate(self.tables)
            ]
            return {"score": tf.concat(found, 1) @ self.kernel}

    model = Model()
    tf.saved_model.save(model, path, model.serve)
    return {}


def _rewrite(source: str, way: str, path: str) -> dict[str, Any]:
    from fusion.saved_model import fuse_saved_model

    return _peak(lambda: fuse_saved_model(source, path, verify=False, tables=way))


def _split(source: str, path: str) -> dict[str, Any]:
    from fusion.saved_model import split_saved_model

    return _peak(lambda: split_saved_model(source, path, verify=False))


def _peak(run: Callable[[], Any]) -> dict[str, Any]:
    """The largest memory before something runs and then, and its seconds."""
    before = _memory("VmHWM")["VmHWM"]
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"before_mb": before, "peak_mb": _memory("VmHWM")["VmHWM"], "seconds": seconds}


def _signature(path: str, way: str) -> tuple[Any, Any]:
    import tensorflow as tf

    if way != "stock":
        import fusion  # noqa: F401
    start = time.perf_counter()
    model = tf.saved_model.load(path)
    return model, (model.signatures["serving_default"], start)


def _ids(rows: int, count: int = 1) -> list[Any]:
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(1)
    return [tf.constant(random.integers(0, rows, (_BATCH, _TABLES))) for _ in range(count)]


def _start(path: str, way: str) -> dict[str, Any]:
    import tensorflow as tf

    (ids,) = _ids(1000)
    tf.zeros([1]).numpy()
    model, (call, start) = _signature(path, way)
    call(ids=ids)["score"].numpy()
    seconds = time.perf_counter() - start
    del model
    return {"first_s": seconds, "memory_mb": _memory("VmRSS")["VmRSS"]}


def _share(path: str) -> dict[str, Any]:
    import tensorflow as tf

    model, _ = _signature(path, "mapped")
    input()
    for table in model.tables:
        for first in range(0, table.shape[0], 1 << 16):
            tf.gather(table, tf.range(first, min(first + (1 << 16), table.shape[0])))
    print("{}", flush=True)
    input()
    memory = _memory("Rss", "Pss")
    print(json.dumps({"rss_mb": memory["Rss"], "pss_mb": memory["Pss"]}), flush=True)
    input()
    return {}


def _advise(source: str, path: str, mapped_bytes: str) -> dict[str, Any]:
    """Makes a model with the same files that says otherwise how large all tables are, or not."""
    from tensorflow.core.protobuf import saved_model_pb2

    shutil.copytree(source, path, copy_function=os.link)
    if mapped_bytes:
        file = Path(path, "saved_model.pb")
        proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        graph = proto.meta_graphs[0].graph_def
        for node in chain(graph.node, *(f.node_def for f in graph.library.function)):
            if node.op == "ReadTableFile":
                node.attr["mapped_bytes"].i = int(mapped_bytes)
        file.unlink()  # and not in the source
        file.write_bytes(proto.SerializeToString())
    return {}


def _calls(path: str, count: str, most_seconds: str) -> dict[str, Any]:
    """Calls a model so often, or so long; percentiles are those of the second half of the calls."""
    model, (call, _) = _signature(path, "mapped")
    batches = _ids(model.tables[0].shape[0], int(count))
    times, end = list[float](), time.perf_counter() + float(most_seconds)
    for ids in batches:
        if time.perf_counter() > end:
            break
        start = time.perf_counter()
        call(ids=ids)["score"].numpy()
        times.append(time.perf_counter() - start)
    ordered = sorted(times[len(times) // 2 :])
    return {
        "calls": len(times),
        "seconds": sum(times),
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[len(ordered) * 99 // 100],
        "is_random": " rr " in Path("/proc/self/smaps").read_text(),
        "memory_mb": _memory("VmRSS")["VmRSS"],
    }


def _warm(folder: str, seconds: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from benchmarks.measure import in_turns

    calls = {}
    for way in _WAYS:
        model, (call, _) = _signature(f"{folder}/{way}", way)
        for table in model.tables:
            tf.reduce_sum(tf.gather(table, tf.range(table.shape[0])))
        calls[way] = (model, call)
    found = {}
    rows = calls["mapped"][0].tables[0].shape[0]
    for batch in (512, 4096):
        ids = tf.constant(np.random.default_rng(2).integers(0, rows, (64, batch, _TABLES)))
        wanted = [call(ids=ids[0])["score"].numpy() for _, call in calls.values()]
        assert all(np.array_equal(one, wanted[0]) for one in wanted)
        sides = [_Calls(call, ids) for _, call in calls.values()]
        times = in_turns(sides, float(seconds))
        found[str(batch)] = {
            way: 1e3 * statistics.median(each) for way, each in zip(calls, times, strict=True)
        }
    return found


class _Calls:
    """Calls a signature with one batch after the other."""

    def __init__(self, call: Any, batches: Any) -> None:
        self._call, self._batches, self._number = call, batches, 0

    def __call__(self) -> None:
        self._number = (self._number + 1) % len(self._batches)
        self._call(ids=self._batches[self._number])


_STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "make": _make,
    "rewrite": _rewrite,
    "split": _split,
    "start": _start,
    "share": _share,
    "advise": _advise,
    "calls": _calls,
    "warm": _warm,
}


def main() -> None:
    """Measures and prints all, or one step of it."""
    if sys.argv[1:2] == ["step"]:
        _, _, step, *given = sys.argv
        print(json.dumps(_STEPS[step](*given)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.0, help="of tables, default 8")
    parser.add_argument("--repeats", type=int, default=3, help="of each start, default 3")
    parser.add_argument("--seconds", type=float, default=10.0, help="of warm calls, default 10")
    parser.add_argument("--out", type=Path, help="a folder for the numbers, mapped.json")
    options = parser.parse_args()
    from fusion.runtime.machine import machine

    with tempfile.TemporaryDirectory() as folder:
        numbers = measure(Path(folder), options.gigabytes, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        least = min(options.gigabytes, 1.0)
        numbers["warm_ms"] = warm(Path(folder), least, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        numbers["pages"] = pages(Path(folder))
    numbers["machine"] = machine()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "mapped.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(report(numbers))


if __name__ == "__main__":
    main()
